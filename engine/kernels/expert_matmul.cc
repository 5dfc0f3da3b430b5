#include "engine/kernels/expert_matmul.h"

#include <algorithm>
#include <cstring>

#include "engine/kernels/nibble_matmul.h"
#include "engine/kernels/nibble_panels.h"
#include "engine/kernels/vq1_matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/expert_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Register tiles: R rows of the matrix by N rows of x, near a square, so that every load of weights
// or of x serves several products.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kMaxTileRows = 4;
constexpr size_t RowsFor(size_t) {
  return 4;
}
#elif HWY_TARGET == HWY_SCALAR
constexpr size_t kMaxTileRows = 1;
constexpr size_t RowsFor(size_t) {
  return 1;
}
#else
constexpr size_t kMaxTileRows = 3;
constexpr size_t RowsFor(size_t n) {
  return n == 1 ? 4 : n == 2 ? 2 : 1;
}
#endif

template <size_t R, size_t N>
HWY_INLINE void FloatStep(const ExpertJob& job, size_t row, const float* x, size_t column,
                          size_t width, V16 (&acc)[R][N]) {
  V16 weights[R];
  for (size_t r = 0; r < R; ++r) {
    weights[r] = LoadGroup16(job.w.values + (row + r) * job.w.cols + column, width);
  }
  for (size_t n = 0; n < N; ++n) {
    const V16 value = LoadGroup16(x + n * job.ldx + column, width);
    for (size_t r = 0; r < R; ++r) acc[r][n] = Fma16(weights[r], value, acc[r][n]);
  }
}

// Rows [row, row + R) of a F32 matrix by rows [xr, xr + N) of x.
template <size_t R, size_t N>
HWY_INLINE void FloatTile(const ExpertJob& job, size_t row, size_t xr) {
  const float* x = job.x + xr * job.ldx;
  V16 acc[R][N];
  for (size_t r = 0; r < R; ++r) {
    for (size_t n = 0; n < N; ++n) acc[r][n] = Zero16();
  }
  size_t column = 0;
  for (; column + 16 <= job.w.cols; column += 16) FloatStep<R, N>(job, row, x, column, 16, acc);
  if (column < job.w.cols) FloatStep<R, N>(job, row, x, column, job.w.cols - column, acc);
  StoreSums16(acc, job.y + xr * job.ldy + row, job.ldy);
}

// Matrix rows [begin, end) by N rows of x from xr on.
template <size_t N>
void FloatRows(const ExpertJob& job, size_t begin, size_t end, size_t xr) {
  constexpr size_t R = RowsFor(N);
  size_t row = begin;
  for (; row + R <= end; row += R) FloatTile<R, N>(job, row, xr);
  for (; row < end; ++row) FloatTile<1, N>(job, row, xr);
}

template <size_t N>
void FloatRowsUpTo(const ExpertJob& job, size_t begin, size_t end, size_t xr, size_t n) {
  if (n == N) {
    FloatRows<N>(job, begin, end, xr);
  } else if constexpr (N > 1) {
    FloatRowsUpTo<N - 1>(job, begin, end, xr, n);
  }
}

}  // namespace

void FloatMatMul(const ExpertJob& job, size_t begin, size_t end) {
  // Matrix rows in chunks that stay in the first level cache while the rows of x pass by.
  const size_t row_bytes = std::max<size_t>(1, job.w.cols * 4);
  const size_t chunk = std::max<size_t>(4, (size_t{16} << 10) / row_bytes / 4 * 4);
  const size_t tiles = (job.n + kMaxTileRows - 1) / kMaxTileRows;
  for (size_t row = begin; row < end; row += chunk) {
    const size_t row_end = std::min(end, row + chunk);
    for (size_t tile = 0; tile < tiles; ++tile) {  // of about equal height
      const size_t xr = job.n * tile / tiles;
      const size_t xr_end = job.n * (tile + 1) / tiles;
      FloatRowsUpTo<kMaxTileRows>(job, row, row_end, xr, xr_end - xr);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(FloatMatMul);

void ExpertMatMul(const ExpertJob& job, size_t row_begin, size_t row_end) {
  if (TakesBytes(job.w.kind)) return NibbleMatMul(job, row_begin, row_end);
  if (job.w.kind == ExpertKind::kVq1) return Vq1MatMul(job, row_begin, row_end);
  HWY_DYNAMIC_DISPATCH(FloatMatMul)(job, row_begin, row_end);
}

namespace {

// Work of a task that hides the cost of handing it out, in weights decoded and used.
constexpr uint64_t kSmallestTask = 16 * 1024;
constexpr uint64_t kTasksPerWorker = 6;
// Tasks are cut at multiples of this many matrix rows.
constexpr size_t kRowStep = 16;

// Work of one matrix row. Decoding costs about as much as using a weight twice.
uint64_t RowWork(const ExpertJob& job) {
  return uint64_t{job.w.cols} * (job.n + 2);
}

uint64_t JobWork(const ExpertJob& job) {
  return job.n == 0 ? 0 : RowWork(job) * job.w.rows;
}

// The row of `job` at which `work` of its work is done, at a multiple of kRowStep.
size_t RowAt(const ExpertJob& job, uint64_t work) {
  const size_t row = work / std::max<uint64_t>(1, RowWork(job)) / kRowStep * kRowStep;
  return work >= JobWork(job) ? job.w.rows : row;
}

// Work of a task of the job that is worth it: tables of VQ1 products are made by every task anew.
uint64_t SmallestTask(const ExpertJob& job) {
  const bool makes_tables = job.w.kind == ExpertKind::kVq1 && job.tables.values == nullptr;
  const uint64_t rows = job.n < 4 ? 256 : 1024;
  return makes_tables ? rows * RowWork(job) : 0;
}

uint64_t SmallestTask(std::span<const ExpertJob> jobs) {
  uint64_t smallest = kSmallestTask;
  for (const ExpertJob& job : jobs) smallest = std::max(smallest, SmallestTask(job));
  return smallest;
}

uint64_t TotalWork(std::span<const ExpertJob> jobs) {
  uint64_t total = 0;
  for (const ExpertJob& job : jobs) total += JobWork(job);
  return total;
}

// Calls body(job, first row, end row) for the pieces of jobs whose work, laid end to end, is
// [begin, end).
template <typename Body>
void ForPieces(std::span<const ExpertJob> jobs, uint64_t begin, uint64_t end, const Body& body) {
  uint64_t offset = 0;
  for (const ExpertJob& job : jobs) {
    const uint64_t work = JobWork(job);
    if (work > 0 && offset < end && offset + work > begin) {
      const size_t first = begin <= offset ? 0 : RowAt(job, begin - offset);
      const size_t last = RowAt(job, end - offset);
      if (first < last) body(job, first, last);
    }
    offset += work;
    if (offset >= end) break;
  }
}

// Asks for the first part of rows [first, last).
void PrefetchRows(const ExpertMatrix& w, size_t first, size_t last) {
  constexpr size_t kMostBytes = size_t{16} << 10;
  if (!TakesBytes(w.kind)) return;
  const size_t panel_bytes = NibblePanelBytes(w.cols);
  const uint8_t* begin = w.packed + first / kNibblePanelRows * panel_bytes;
  const size_t panels = (last - first + kNibblePanelRows - 1) / kNibblePanelRows;
  const uint8_t* end = begin + std::min(kMostBytes, panels * panel_bytes);
  for (const uint8_t* p = begin; p < end; p += 64) __builtin_prefetch(p, 0, 2);
}

void PrefetchPiece(const ExpertJob& job, size_t first, size_t last) {
  PrefetchRows(job.w, first, last);
}

}  // namespace

void PrefetchExpert(const ExpertMatrix& matrix) {
  PrefetchRows(matrix, 0, matrix.rows);
}

Status ParallelExpertMatMul(ThreadPool& pool, std::span<const ExpertJob> jobs,
                            std::span<const ExpertJob> next) {
  const uint64_t total = TotalWork(jobs);
  if (total == 0) {  // nothing to do, or matrices without columns
    for (const ExpertJob& job : jobs) ExpertMatMul(job, 0, job.w.rows);
    return {};
  }
  const uint64_t goal = std::max(SmallestTask(jobs), total / (pool.size() * kTasksPerWorker));
  const size_t tasks = (total + goal - 1) / goal;
  const uint64_t next_share = TotalWork(next) / tasks + 1;
  // The jobs' work laid end to end; task t owns [t goal, (t + 1) goal).
  return pool.ParallelFor(tasks, [&](size_t task, size_t) {
    const uint64_t begin = task * goal;
    if (pool.StartsRun(task, tasks)) ForPieces(jobs, begin, begin + goal, PrefetchPiece);
    // The task that this worker is likely to take next.
    ForPieces(jobs, begin + goal, begin + 2 * goal, PrefetchPiece);
    ForPieces(next, task * next_share, (task + 1) * next_share, PrefetchPiece);
    ForPieces(jobs, begin, begin + goal, ExpertMatMul);
  });
}

}  // namespace mk
#endif  // HWY_ONCE
