#include "engine/format/spine_writer.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <system_error>
#include <utility>

namespace mk {
namespace {

// Linux keeps both priorities by thread. Failures do no harm.
void GiveWay() {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
#ifdef SYS_ioprio_set
  constexpr int kWhoProcess = 1;
  constexpr int kClassIdle = 3 << 13;
  (void)::syscall(SYS_ioprio_set, kWhoProcess, 0, kClassIdle);
#endif
}

}  // namespace

SpineWriter::SpineWriter(SpineCacheOptions options, SpineKey key,
                         std::span<const std::byte> spine) {
  auto work = [this, options = std::move(options), key = std::move(key), spine] {
    (void)::pthread_setname_np(::pthread_self(), "spine-writer");
    GiveWay();
    try {
      KeepSpine(options, key, spine, [this] { return !stop_.load(std::memory_order_relaxed); });
    } catch (const std::bad_alloc&) {
      // Then it is not kept.
    }
  };
  try {
    thread_ = std::thread(std::move(work));
  } catch (const std::system_error&) {
    // No thread to be had: then it is not kept.
  }
}

SpineWriter::~SpineWriter() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

}  // namespace mk
