#include "daemon/task_thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace mk::daemon {

void NameThisThread(const std::string& name, int nice) {
  pthread_setname_np(pthread_self(), name.c_str());
  if (nice != 0) {
    // On Linux a thread id in place of a process id sets the priority of that thread alone.
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), nice);
  }
}

TaskThread::TaskThread(const std::string& name, size_t capacity, int nice)
    : tasks_(capacity), thread_([this, name, nice] { Run(name, nice); }) {}

TaskThread::~TaskThread() {
  Stop();
}

void TaskThread::Stop() {
  stopping_.store(true);
  tasks_.Close();
  if (thread_.joinable()) thread_.join();
  // Tasks that will not run give up what they hold now, not when this object goes.
  while (tasks_.TryPop()) {
  }
}

void TaskThread::Run(const std::string& name, int nice) {
  NameThisThread(name, nice);
  while (!stopping_.load()) {
    auto task = tasks_.TryPop();
    if (task) {
      (*task)();
    } else if (!tasks_.closed()) {
      tasks_.event().Wait(-1);
    } else {
      break;
    }
  }
}

}  // namespace mk::daemon
