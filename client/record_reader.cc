#include "client/record_reader.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mk::client {

RecordReader::RecordReader(int fd, std::string name, char separator, size_t most)
    : fd_(fd), name_(std::move(name)), separator_(separator), most_(most) {}

RecordReader::RecordReader(size_t count)
    : fd_(-1), separator_('\0'), most_(0), buffer_(count, '\0'), ended_(true) {}

void RecordReader::Hand(Record& record, size_t end, size_t next) {
  record.too_long = skipping_ || end - begin_ > most_;
  record.bytes.clear();
  if (!record.too_long) record.bytes.assign(buffer_, begin_, end - begin_);
  consumed_ += next - begin_;
  begin_ = scanned_ = next;
  skipping_ = false;
}

bool RecordReader::Next(Record& record) {
  const size_t end = buffer_.find(separator_, scanned_);
  if (end != std::string::npos) {
    Hand(record, end, end + 1);
    return true;
  }
  scanned_ = buffer_.size();
  const bool something = skipping_ || begin_ < buffer_.size();
  if (ended_ && something) {
    Hand(record, buffer_.size(), buffer_.size());
    return true;
  }
  if (buffer_.size() - begin_ > most_) {
    skipping_ = true;
    consumed_ += buffer_.size() - begin_;
    buffer_.clear();
    begin_ = scanned_ = 0;
  }
  return false;
}

protocol::Status RecordReader::Fill() {
  buffer_.erase(0, begin_);
  scanned_ -= begin_;
  begin_ = 0;
  std::array<char, 65536> piece;
  ssize_t got = 0;
  do {
    got = ::read(fd_, piece.data(), piece.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno != EAGAIN) {
    return protocol::Fail(protocol::ErrorCode::kIoError,
                          "cannot read " + name_ + ": " + std::strerror(errno),
                          "give another file, or the prompts through a pipe");
  }
  if (got > 0) buffer_.append(piece.data(), static_cast<size_t>(got));
  ended_ = got == 0;
  return {};
}

}  // namespace mk::client
