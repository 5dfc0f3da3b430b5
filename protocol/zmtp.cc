#include "protocol/zmtp.h"

#include <utility>

namespace mk::protocol {
namespace {

constexpr size_t kGreetingBytes = 64;
constexpr size_t kMechanismAt = 12;
constexpr size_t kMechanismBytes = 20;
constexpr uint8_t kMore = 1;
constexpr uint8_t kLong = 2;
constexpr uint8_t kCommand = 4;
constexpr size_t kMaxCommandBytes = 4096;  // READY with metadata, PING with 16 bytes of context
constexpr size_t kMaxPingContext = 16;

uint64_t BigEndian64(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

void AppendBigEndian(std::string& out, uint64_t value, size_t bytes) {
  for (size_t i = bytes; i-- > 0;) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

std::string FrameHeader(uint8_t flags, size_t size) {
  std::string header;
  if (size <= 255) {
    header += static_cast<char>(flags);
    header += static_cast<char>(size);
  } else {
    header += static_cast<char>(flags | kLong);
    AppendBigEndian(header, size, 8);
  }
  return header;
}

std::string Command(std::string_view name, std::string_view body) {
  std::string frame = FrameHeader(kCommand, 1 + name.size() + body.size());
  frame += static_cast<char>(name.size());
  frame += name;
  frame += body;
  return frame;
}

// Length of the name is one byte, that of the value four.
std::string Property(std::string_view name, std::string_view value) {
  std::string property(1, static_cast<char>(name.size()));
  property += name;
  AppendBigEndian(property, value.size(), 4);
  property += value;
  return property;
}

}  // namespace

std::string ZmtpClientHello() {
  std::string bytes("\xFF\0\0\0\0\0\0\0\0\x7F", 10);  // signature
  bytes += std::string("\x03\x01", 2);                // version 3.1
  std::string mechanism("NULL");
  mechanism.resize(kMechanismBytes, '\0');
  bytes += mechanism;
  bytes.resize(kGreetingBytes, '\0');  // as-server 0, filler
  bytes += Command("READY", Property("Socket-Type", "DEALER") + Property("Identity", ""));
  return bytes;
}

std::string ZmtpMessageHeader(size_t payload_bytes) {
  return FrameHeader(0, payload_bytes);
}

std::string ZmtpMessage(std::string_view payload) {
  std::string bytes = ZmtpMessageHeader(payload.size());
  bytes += payload;
  return bytes;
}

Status ZmtpDecoder::Broken(std::string why) {
  stage_ = Stage::kFailed;
  buffer_.clear();
  consumed_ = 0;
  return Fail(ErrorCode::kBadRequest, "the peer does not speak our protocol: " + std::move(why));
}

Status ZmtpDecoder::Feed(std::string_view bytes) {
  if (stage_ == Stage::kFailed) return Broken("it was given up before");
  buffer_ += bytes;
  bool advanced = true;
  while (advanced) {
    advanced = false;
    if (Status status = Step(advanced); !status) return status;
  }
  buffer_.erase(0, consumed_);
  consumed_ = 0;
  return {};
}

Status ZmtpDecoder::Step(bool& advanced) {
  if (stage_ == Stage::kGreeting) return ReadGreeting(advanced);
  return ReadFrame(advanced);
}

Status ZmtpDecoder::ReadGreeting(bool& advanced) {
  const std::string_view rest = Rest();
  // A stranger is recognised by its first byte, without waiting for the other 63.
  if (!rest.empty() && rest[0] != '\xFF') return Broken("no ZMTP greeting");
  if (rest.size() >= 10 && (static_cast<uint8_t>(rest[9]) & 1) == 0) {
    return Broken("no ZMTP greeting");
  }
  if (rest.size() >= 11 && static_cast<uint8_t>(rest[10]) < 3) return Broken("ZMTP before 3.0");
  if (rest.size() < kGreetingBytes) return {};
  std::string wanted("NULL");
  wanted.resize(kMechanismBytes, '\0');
  if (rest.substr(kMechanismAt, kMechanismBytes) != wanted) {
    return Broken("it asks for another security mechanism than NULL");
  }
  consumed_ += kGreetingBytes;
  stage_ = Stage::kHandshake;
  advanced = true;
  return {};
}

Status ZmtpDecoder::ReadFrame(bool& advanced) {
  const std::string_view rest = Rest();
  if (rest.size() < 2) return {};
  const auto flags = static_cast<uint8_t>(rest[0]);
  if ((flags & ~(kMore | kLong | kCommand)) != 0) return Broken("reserved bits in a frame");
  const bool is_long = (flags & kLong) != 0;
  const size_t header = is_long ? 9 : 2;
  if (rest.size() < header) return {};
  const uint64_t size = is_long ? BigEndian64(rest.substr(1)) : static_cast<uint8_t>(rest[1]);
  if ((flags & kCommand) != 0) {
    if ((flags & kMore) != 0) return Broken("a command of several frames");
    if (size > kMaxCommandBytes) return Broken("an oversized command");
  } else if (size > max_message_ - partial_.size()) {
    return Broken("a message of more than " + std::to_string(max_message_) + " bytes");
  }
  if (rest.size() - header < size) {
    // One growth to the right size, now that the size has been checked.
    buffer_.reserve(consumed_ + header + size);
    return {};
  }
  const std::string_view body = rest.substr(header, size);
  consumed_ += header + size;
  advanced = true;
  return TakeFrame(flags, body);
}

Status ZmtpDecoder::TakeFrame(uint8_t flags, std::string_view body) {
  if ((flags & kCommand) != 0) {
    if (in_message_) return Broken("a command inside a message");
    return TakeCommand(body);
  }
  if (stage_ != Stage::kTraffic) return Broken("a message before READY");
  partial_ += body;
  in_message_ = (flags & kMore) != 0;
  if (in_message_) return {};
  messages_.push_back(std::move(partial_));
  partial_.clear();
  return {};
}

Status ZmtpDecoder::TakeCommand(std::string_view body) {
  if (body.empty() || body.size() < 1u + static_cast<uint8_t>(body[0])) {
    return Broken("a command without a name");
  }
  const size_t name_bytes = static_cast<uint8_t>(body[0]);
  const std::string_view name = body.substr(1, name_bytes);
  const std::string_view rest = body.substr(1 + name_bytes);
  if (stage_ == Stage::kHandshake) {
    if (name == "READY") return TakeReady(rest);
    if (name == "ERROR") return Broken("it refused the connection");
    return Broken("another command than READY");
  }
  if (name == "PING") return TakePing(rest);
  return {};  // PONG, and commands of later versions
}

Status ZmtpDecoder::TakeReady(std::string_view metadata) {
  bool known = false;
  while (!metadata.empty()) {
    const size_t name_bytes = static_cast<uint8_t>(metadata[0]);
    if (metadata.size() < 1 + name_bytes + 4) return Broken("a torn property in READY");
    const std::string_view name = metadata.substr(1, name_bytes);
    metadata.remove_prefix(1 + name_bytes);
    const uint64_t value_bytes =
        BigEndian64(std::string(4, '\0') + std::string(metadata.substr(0, 4)));
    metadata.remove_prefix(4);
    if (metadata.size() < value_bytes) return Broken("a torn property in READY");
    const std::string_view value = metadata.substr(0, value_bytes);
    metadata.remove_prefix(value_bytes);
    if (name == "Socket-Type") known = value == "ROUTER" || value == "DEALER" || value == "REP";
  }
  if (!known) return Broken("it is no socket that answers requests");
  stage_ = Stage::kTraffic;
  return {};
}

Status ZmtpDecoder::TakePing(std::string_view body) {
  constexpr size_t kTtlBytes = 2;
  if (body.size() < kTtlBytes || body.size() > kTtlBytes + kMaxPingContext) {
    return Broken("a malformed PING");
  }
  replies_ += Command("PONG", body.substr(kTtlBytes));
  return {};
}

bool ZmtpDecoder::Next(std::string& message) {
  if (messages_.empty()) return false;
  message = std::move(messages_.front());
  messages_.pop_front();
  return true;
}

std::string ZmtpDecoder::TakeReplies() {
  return std::exchange(replies_, {});
}

}  // namespace mk::protocol
