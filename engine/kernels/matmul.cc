#include "engine/kernels/matmul.h"

#include <algorithm>
#include <cstdint>

#include "engine/kernels/matmul_kernel.h"

namespace mk {
namespace {

constexpr size_t CeilDiv(size_t a, size_t b) {
  return (a + b - 1) / b;
}

// Multiply-adds of a task that hide the cost of handing it out (about a microsecond).
constexpr uint64_t kSmallestTask = 32 * 1024;
// Panels of a task when x has many rows: their block of columns (16 KiB each) stays in the second
// level cache while the rows of x pass by.
constexpr size_t kMostPanels = 16;
// Tasks per worker, for balance.
constexpr size_t kTasksPerWorker = 4;

// How one job is cut: tasks of `panels` panels by `rows` rows of x.
struct Grid {
  size_t panels = 1;
  size_t rows = 1;
  size_t panel_tasks = 0;
  size_t row_tasks = 0;

  size_t tasks() const { return panel_tasks * row_tasks; }
};

uint64_t Work(const MatMulJob& job) {
  return uint64_t{CeilDiv(job.w.rows, kPanelRows)} * kPanelRows * job.w.cols * job.n;
}

// About what it takes one thread: weights arrive at 50 GB/s, and every row of x after the first
// takes a fifth of that.
uint64_t Nanoseconds(const MatMulJob& job) {
  if (job.n == 0) return 0;
  const uint64_t bytes = PackedBytes(job.w.kind, job.w.rows, job.w.cols);
  return bytes / 50 + bytes / 250 * (job.n - 1);
}

// `goal`: multiply-adds that a task should have.
Grid CutJob(const MatMulJob& job, uint64_t goal) {
  Grid grid;
  if (job.n == 0 || job.w.rows == 0 || job.w.cols == 0) return grid;
  const size_t all_panels = CeilDiv(job.w.rows, kPanelRows);
  const uint64_t panel_work = uint64_t{kPanelRows} * job.w.cols * job.n;
  const uint64_t panels = std::max<uint64_t>(kPanelGroup, goal / panel_work);
  grid.panels = panels < kPanelGroup ? kPanelGroup / 2 : panels / kPanelGroup * kPanelGroup;
  if (job.n > kRowTile) grid.panels = std::min(grid.panels, kMostPanels);
  grid.panels = std::min(grid.panels, all_panels);
  grid.panel_tasks = CeilDiv(all_panels, grid.panels);
  // A group of panels with all rows of x may still be too much for one task. Cutting the rows means
  // that several tasks read the same weights.
  const uint64_t row_work = uint64_t{grid.panels} * kPanelRows * job.w.cols;
  const size_t tiles = CeilDiv(job.n, kRowTile);
  const size_t tiles_per_task = std::max<uint64_t>(1, 3 * goal / 2 / (row_work * kRowTile));
  const size_t cuts = CeilDiv(tiles, tiles_per_task);
  grid.rows = CeilDiv(job.n, 3 * goal / 2 >= row_work * job.n ? 1 : cuts);
  grid.row_tasks = CeilDiv(job.n, grid.rows);
  return grid;
}

void RunTask(const MatMulJob& job, const Grid& grid, size_t task) {
  const size_t panel = task / grid.row_tasks * grid.panels;
  const size_t row = task % grid.row_tasks * grid.rows;
  MatMulTile(job, panel, std::min(panel + grid.panels, CeilDiv(job.w.rows, kPanelRows)), row,
             std::min(row + grid.rows, job.n));
}

// Without columns every sum is empty.
void ClearOutputs(const MatMulJob& job) {
  for (size_t i = 0; i < job.n; ++i) std::fill_n(job.y + i * job.ldy, job.w.rows, 0.0f);
}

}  // namespace

void MatMul(const MatMulJob& job) {
  if (job.w.cols == 0) return ClearOutputs(job);
  const Grid grid = CutJob(job, ~uint64_t{0});
  for (size_t task = 0; task < grid.tasks(); ++task) RunTask(job, grid, task);
}

Status ParallelMatMul(ThreadPool& pool, std::span<const MatMulJob> jobs) {
  uint64_t work = 0;
  uint64_t nanoseconds = 0;
  for (const MatMulJob& job : jobs) {
    work += Work(job);
    nanoseconds += Nanoseconds(job);
    if (job.w.cols == 0) ClearOutputs(job);
  }
  const uint64_t goal = std::max(kSmallestTask, work / (pool.size() * kTasksPerWorker));
  size_t tasks = 0;
  for (const MatMulJob& job : jobs) tasks += CutJob(job, goal).tasks();
  return pool.ParallelFor(tasks, nanoseconds, [&](size_t task, size_t) {
    for (const MatMulJob& job : jobs) {
      const Grid grid = CutJob(job, goal);
      if (task < grid.tasks()) return RunTask(job, grid, task);
      task -= grid.tasks();
    }
  });
}

}  // namespace mk
