#include "daemon/log.h"

#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <cstdio>
#include <memory>
#include <vector>

namespace mk::daemon {
namespace {

constexpr size_t kMaxLogBytes = 8u << 20;
constexpr size_t kKeptLogs = 2;

}  // namespace

Status SetUpLog(const LogOptions& options) {
  try {
    std::vector<spdlog::sink_ptr> sinks;
    if (options.to_stderr) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    if (!options.file.empty()) {
      sinks.push_back(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
          options.file, kMaxLogBytes, kKeptLogs));
    }
    auto logger = std::make_shared<spdlog::logger>("microkimid", sinks.begin(), sinks.end());
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %P %l %v");
    logger->set_level(spdlog::level::from_str(options.level));
    logger->flush_on(spdlog::level::info);
    spdlog::set_default_logger(std::move(logger));
  } catch (const spdlog::spdlog_ex& error) {
    return Fail(ErrorCode::kIo, std::string("cannot open the log: ") + error.what(),
                "make the state directory writable or use --foreground");
  }
  return {};
}

void SetLogLevel(const std::string& level) {
  spdlog::set_level(spdlog::level::from_str(level));
}

std::string LogFileFor(const std::string& state_directory, const std::string& socket_path,
                       bool is_default_socket) {
  std::string name = "microkimid.log";
  if (!is_default_socket) {
    char digest[32];
    std::snprintf(digest, sizeof digest, "microkimid-%08x.log",
                  XXH32(socket_path.data(), socket_path.size(), 0));
    name = digest;
  }
  return state_directory + "/" + name;
}

}  // namespace mk::daemon
