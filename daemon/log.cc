#include "daemon/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "protocol/log_path.h"

namespace mk::daemon {
namespace {

// The message, for a line of its own.
class EscapedMessage : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& line) override {
    for (const char c : message.payload) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x20 && byte != 0x7F) {
        line.push_back(c);
        continue;
      }
      char text[8];
      const int size = c == '\n'   ? std::snprintf(text, sizeof text, "\\n")
                       : c == '\t' ? std::snprintf(text, sizeof text, "\\t")
                                   : std::snprintf(text, sizeof text, "\\x%02x", byte);
      line.append(text, text + size);
    }
  }
  std::unique_ptr<spdlog::custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedMessage>();
  }
};

std::unique_ptr<spdlog::formatter> LineFormat() {
  auto format = std::make_unique<spdlog::pattern_formatter>();
  format->add_flag<EscapedMessage>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %P %l %*");
  return format;
}

}  // namespace

Status SetUpLog(const LogOptions& options) {
  try {
    std::vector<spdlog::sink_ptr> sinks;
    if (options.to_stderr) sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
    if (!options.file.empty()) {
      sinks.push_back(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
          options.file, options.max_bytes, protocol::kKeptLogs));
    }
    auto logger = std::make_shared<spdlog::logger>("microkimid", sinks.begin(), sinks.end());
    logger->set_formatter(LineFormat());
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

}  // namespace mk::daemon
