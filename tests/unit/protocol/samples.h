// One message of every kind, with no member at its default, so that a field that is not carried
// shows as a difference.

#pragma once

#include <vector>

#include "protocol/messages.h"

namespace mk::protocol::testing {

std::vector<Request> SampleRequests();

struct SampleReply {
  Reply reply;
  Op op;  // of the request that it answers
};
std::vector<SampleReply> SampleReplies();

}  // namespace mk::protocol::testing
