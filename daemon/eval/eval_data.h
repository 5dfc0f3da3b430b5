// The tasks and texts of an evaluation: from their names to what they hold.

#pragma once

#include <string>
#include <vector>

#include "daemon/ledger.h"
#include "eval/task.h"
#include "eval/text_file.h"
#include "protocol/messages.h"

namespace mk::daemon {

struct EvalTask {
  eval::Task task;
  std::string sha256;  // of the file
};
struct EvalText {
  eval::TextFile file;
  std::string sha256;
};
struct EvalData {
  std::vector<EvalTask> tasks;
  std::vector<EvalText> texts;
};

// Names of bundled files become paths. Errors: kNotFound, and what keeps a file from being opened.
protocol::Status ResolveEvalFiles(protocol::EvalItems& items);

// What the files, their tokens and results take, roughly. Errors: kOutOfMemory; those of opening.
protocol::Result<Reservation> ReserveForEvalData(const protocol::EvalItems& items, Ledger& ledger);

// Reads and checks the files. Errors: kBadRequest, naming file and line; those of reading.
protocol::Result<EvalData> LoadEvalData(const protocol::EvalItems& items);

}  // namespace mk::daemon
