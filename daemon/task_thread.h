// TaskThread: one thread that runs tasks one after the other, for work that must not hold up the
// I/O thread: loading models, encoding text, jobs.

#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "daemon/bounded_queue.h"

namespace mk::daemon {

// Names the calling thread, as shown by top -H (at most 15 characters), and adds `nice` to its
// priority.
void NameThisThread(const std::string& name, int nice);

class TaskThread {
 public:
  using Task = std::function<void()>;

  // `name` has at most 15 characters and shows in top -H; `nice` is added to the thread's priority.
  TaskThread(const std::string& name, size_t capacity, int nice = 0);
  // Lets the running task end, drops those that wait.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // False when too many tasks wait already.
  bool Post(Task task) { return tasks_.TryPush(std::move(task)); }
  size_t waiting() const { return tasks_.size(); }
  // Takes no more tasks, drops those that wait and joins the thread.
  void Stop();

 private:
  void Run(const std::string& name, int nice);

  BoundedQueue<Task> tasks_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace mk::daemon
