// Checkpoints of absorb: what was written comes back, what was not does not.

#include "daemon/jobs/absorb_checkpoint.h"

#include <gtest/gtest.h>

#include <limits>

namespace mk::daemon {
namespace {

TEST(AbsorbCheckpoint, ComesBackAsItWas) {
  const AbsorbCheckpoint empty;
  EXPECT_EQ(DecodeAbsorbCheckpoint(Encode(empty)), empty);
  const AbsorbCheckpoint full{"/state/gr\xC3\xB6\xC3\x9F\x65 \"1\".mkmem",
                              12,
                              std::numeric_limits<uint64_t>::max(),
                              {"aa", "bb"}};
  EXPECT_EQ(DecodeAbsorbCheckpoint(Encode(full)), full);
}

TEST(AbsorbCheckpoint, AnythingElseIsNone) {
  for (const char* bytes : {"", "x", "{}", "[1]", "null", R"({"pack":"/p","before":1,"digest":2})",
                            R"({"pack":1,"before":1,"digest":2,"parents":[]})",
                            R"({"pack":"/p","before":-1,"digest":2,"parents":[]})",
                            R"({"pack":"/p","before":1,"digest":"2","parents":[]})",
                            R"({"pack":"/p","before":1,"digest":2,"parents":[3]})",
                            R"({"pack":"/p","before":1,"digest":2,"parents":[]} x)"}) {
    EXPECT_EQ(DecodeAbsorbCheckpoint(bytes), std::nullopt) << bytes;
  }
}

}  // namespace
}  // namespace mk::daemon
