#include "daemon/jobs/job_writer.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/task_thread.h"

namespace mk::daemon {

JobWriter::JobWriter(JobStore store, std::function<void(JobEvent)> post)
    : store_(std::move(store)), post_(std::move(post)), thread_([this] { Run(); }) {}

void JobWriter::Save(protocol::JobRecord record, uint64_t change) {
  const std::string id = record.id;
  Put(id, Task{std::move(record), change});
}

void JobWriter::Remove(const std::string& id) {
  Put(id, Task{});
}

void JobWriter::Put(const std::string& id, Task task) {
  {
    std::lock_guard lock(mutex_);
    waiting_.insert_or_assign(id, std::move(task));
  }
  wake_.notify_one();
}

void JobWriter::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void JobWriter::Run() {
  NameThisThread("job-records", 0);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    auto next = waiting_.extract(waiting_.begin());
    lock.unlock();
    Do(next.key(), next.mapped());
    lock.lock();
  }
}

void JobWriter::Do(const std::string& id, const Task& task) {
  if (task.record) return post_(JobSaved{id, task.change, store_.Save(*task.record)});
  if (auto removed = store_.Remove(id); !removed) spdlog::warn("{}", removed.error().ToString());
}

}  // namespace mk::daemon
