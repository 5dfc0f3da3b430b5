// What mk says when something went wrong, and the end of the process.

#pragma once

#include <string>
#include <string_view>

#include "client/output.h"
#include "protocol/error.h"

namespace mk::client {

// "mk: <message>" and, when there is one, "  hint: <hint>", on stderr. Returns the exit code.
int ReportError(const protocol::Error& error);
// The same, and with `json` as an object on stdout too, for commands that have written nothing yet.
int ReportError(const protocol::Error& error, bool json);
// A command line that is wrong: exit code 2.
int ReportUsage(std::string_view message, std::string_view hint);

// An error of this kind: exit code 2.
protocol::Error UsageError(std::string message, std::string hint = {});

// Writes the rest of the output. Returns `code`, or an error's when the output could not be
// written; when its reader has left, ends the process as SIGPIPE does.
int FinishOutput(Output& output, int code);
// Ends the process as SIGPIPE does.
[[noreturn]] void LeaveOnClosedPipe();

// Whether colours and moving lines are wanted on this descriptor.
bool IsFancyTerminal(int fd);

}  // namespace mk::client
