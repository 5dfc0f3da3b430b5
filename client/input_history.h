// What was typed into mk chat, kept from call to call.
//
// One entry per line, oldest first; a newline inside an entry is written as \n, a backslash as \\.
// The file is ours alone (mode 0600) and may be shared by several chats at once: entries are
// appended under a lock, and each chat recalls those that were there when it began and its own.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/unique_fd.h"
#include "protocol/error.h"

namespace mk::client {

class InputHistory {
 public:
  // Entries that are recalled. A file of more than twice as many is cut down to them.
  static constexpr size_t kEntries = 1000;

  // Without a file: nothing is kept.
  InputHistory() = default;
  // Reads the file; a missing one is made with the first entry. Errors: kIoError,
  // kPermissionDenied for a file that cannot be used (a link, another user's).
  static protocol::Result<InputHistory> Open(const std::string& path);

  // Oldest first.
  const std::vector<std::string>& entries() const { return entries_; }
  // Appends to the file; an entry equal to the last one is not kept again. Errors: as in Open().
  protocol::Status Add(const std::string& entry);

 private:
  protocol::Status Read();
  protocol::Result<UniqueFd> OpenLocked() const;
  protocol::Status CutDown() const;

  std::string path_;  // empty: no file
  std::vector<std::string> entries_;
};

}  // namespace mk::client
