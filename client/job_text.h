// Jobs and what they gave, as text.

#pragma once

#include <string>

#include "protocol/messages.h"

namespace mk::client {

std::string AbsorbText(const protocol::AbsorbDone& done);
std::string ShadowText(const protocol::ShadowDone& done);
std::string VerifyText(const protocol::VerifyDone& done);
std::string BuildText(const protocol::BuildDone& done);
// What a command ends with whose file is not sound.
protocol::Error NotSound(const protocol::VerifyDone& done);

// A table, one job per line; what is wrong with keeping records in front.
std::string JobsText(const protocol::JobsDone& done);
// All that is known of one, its result behind it.
std::string JobText(const protocol::JobReport& report);
// The result alone: what the command without --detach prints.
std::string ResultText(const protocol::JobResult& result);
// "41 %", "-" when it is not known
std::string JobProgressText(const protocol::JobStatus& job);
// Time that is left, "-" when it is not known.
std::string JobEtaText(const protocol::JobStatus& job);

}  // namespace mk::client
