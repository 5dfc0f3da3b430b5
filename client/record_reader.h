// An input of any length, record by record: lines, or pieces that end with NUL.

#pragma once

#include <cstdint>
#include <string>

#include "protocol/error.h"

namespace mk::client {

struct Record {
  std::string bytes;      // without the separator
  bool too_long = false;  // `bytes` is empty
};

// Holds no more than one record and one read. Does not own the descriptor.
class RecordReader {
 public:
  // A record of more than `most` bytes is skipped and told as too long.
  RecordReader(int fd, std::string name, char separator, size_t most);

  // So many empty records of no input: the items are known otherwise.
  explicit RecordReader(size_t count);

  // The next record that is there. The last one need not end with the separator.
  bool Next(Record& record);
  // One read(), which blocks when nothing is there. Errors: kIoError.
  protocol::Status Fill();

  int fd() const { return fd_; }
  // Everything was read; Next() gives what is left.
  bool ended() const { return ended_; }
  // Bytes of the records given so far, separators included.
  uint64_t consumed() const { return consumed_; }

 private:
  void Hand(Record& record, size_t end, size_t next);

  const int fd_;
  const std::string name_;
  const char separator_;
  const size_t most_;
  std::string buffer_;
  size_t begin_ = 0;       // of the next record in buffer_
  size_t scanned_ = 0;     // no separator stands between begin_ and here
  bool skipping_ = false;  // the beginning of a record that is too long was dropped
  bool ended_ = false;
  uint64_t consumed_ = 0;
};

}  // namespace mk::client
