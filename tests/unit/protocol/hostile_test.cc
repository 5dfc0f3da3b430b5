// Messages of somebody who means harm: each gets an error or is taken for what it is; none crashes
// the decoder or makes it take much memory.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <random>

#include "tests/unit/protocol/samples.h"
#include "tests/unit/protocol/wire.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MK_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MK_TEST_SANITIZED 1
#endif
#endif

namespace mk::protocol {
namespace {

using testing::json;
using testing::Pack;
using testing::RefusalOf;
using testing::RequestJson;

// Address space may grow by this much only while it lives. (Sanitizers need theirs.)
class AddressSpaceCap {
 public:
  explicit AddressSpaceCap(size_t more_bytes) {
#ifndef MK_TEST_SANITIZED
    getrlimit(RLIMIT_AS, &before_);
    std::ifstream statm("/proc/self/statm");
    size_t pages = 0;
    statm >> pages;
    rlimit capped = before_;
    capped.rlim_cur = pages * 4096 + more_bytes;
    setrlimit(RLIMIT_AS, &capped);
    active_ = true;
#else
    static_cast<void>(more_bytes);
#endif
  }
  ~AddressSpaceCap() {
    if (active_) setrlimit(RLIMIT_AS, &before_);
  }

 private:
  rlimit before_ = {};
  bool active_ = false;
};

void ExpectRefused(const std::string& bytes, const char* what) {
  const auto request = DecodeRequest(bytes);
  ASSERT_FALSE(request.has_value()) << what;
  EXPECT_FALSE(request.error().error.message.empty()) << what;
  EXPECT_EQ(request.error().error.message.find("bad_alloc"), std::string::npos) << what;
  EXPECT_FALSE(DecodeReply(bytes, Op::kRun).has_value()) << what;
}

TEST(Hostile, LengthsThatNobodySentTakeNoMemory) {
  const AddressSpaceCap cap(size_t{32} << 20);
  ExpectRefused(std::string("\xDD\xFF\xFF\xFF\xFF", 5), "a list of 4 G items");
  ExpectRefused(std::string("\xDF\xFF\xFF\xFF\xFF", 5), "a map of 4 G entries");
  ExpectRefused(std::string("\xDB\xFF\xFF\xFF\xFF", 5), "a text of 4 GiB");
  ExpectRefused(std::string("\xC6\xFF\xFF\xFF\xFF", 5), "a binary of 4 GiB");
  ExpectRefused(std::string("\xC9\xFF\xFF\xFF\xFF\x01", 6), "an extension of 4 GiB");
  ExpectRefused(std::string("\xDC\xFF\xFF", 3), "a list of 65535 items");
  ExpectRefused(std::string("\xDE\x0F\xFF", 3), "a map of 4095 entries");
  // Within the limit of items, but not there.
  ExpectRefused(std::string("\xDD\x00\x0F\xFF\xFF", 5), "a list of a million items");
}

TEST(Hostile, DeepNestingIsCutShort) {
  const AddressSpaceCap cap(size_t{32} << 20);
  for (const char* opening : {"\x91", "\x81\xA1k"}) {
    std::string bytes;
    while (bytes.size() < (size_t{2} << 20)) bytes += opening;
    ExpectRefused(bytes, opening);
  }
}

TEST(Hostile, ManySmallValuesStayWithinTheirLimit) {
  // 16 million nils, in lists that are each within their own limit.
  std::string bytes;
  for (int i = 0; i < 16; ++i) {
    bytes += std::string("\xDD\x00\x10\x00\x00", 5);
    bytes.append(size_t{1} << 20, '\xC0');
  }
  bytes.insert(0, std::string("\xDC\x00\x10", 3));
  const AddressSpaceCap cap(size_t{128} << 20);
  ExpectRefused(bytes, "many nils");
}

TEST(Hostile, NotMessagePackAtAll) {
  for (const char* text : {"", "GET / HTTP/1.1\r\n\r\n", "{\"v\":1}", "\xC1", "\xFF\xFF\xFF\xFF"}) {
    ExpectRefused(text, text);
  }
}

TEST(Hostile, EveryTruncationOfEveryMessageIsRefused) {
  for (const Request& request : testing::SampleRequests()) {
    const std::string bytes = EncodeRequest(request);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeRequest(bytes.substr(0, size)).has_value()) << size;
    }
  }
  for (const auto& [reply, op] : testing::SampleReplies()) {
    const std::string bytes = EncodeReply(reply);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(DecodeReply(bytes.substr(0, size), op).has_value()) << size;
    }
  }
}

// Changes a few bytes, cuts, doubles or swaps parts: the shape of most real corruption.
std::string Mutate(std::string bytes, std::mt19937& random) {
  const auto below = [&](size_t n) {
    return static_cast<size_t>(random() % std::max<size_t>(n, 1));
  };
  const size_t changes = 1 + below(4);
  for (size_t i = 0; i < changes && !bytes.empty(); ++i) {
    const size_t at = below(bytes.size());
    switch (below(5)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 2:
        bytes.erase(at, below(8));
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(bytes.size()), below(16)));
        break;
      default:
        bytes.insert(at, 1, static_cast<char>(0x80 + below(0x80)));
        break;
    }
  }
  return bytes;
}

TEST(Hostile, MutatedMessagesNeverCrashAndStayConsistent) {
  std::mt19937 random(20240131);
  const std::vector<Request> requests = testing::SampleRequests();
  const auto replies = testing::SampleReplies();
  size_t taken = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string bytes = Mutate(EncodeRequest(requests[random() % requests.size()]), random);
    const auto request = DecodeRequest(bytes);
    if (request) {
      // What was taken can be said again, and means the same.
      const auto again = DecodeRequest(EncodeRequest(*request));
      ASSERT_TRUE(again.has_value()) << again.error().error.message;
      EXPECT_TRUE(*again == *request);
      ++taken;
    } else {
      EXPECT_FALSE(request.error().error.message.empty());
      // The refusal itself can always be sent.
      const auto sent =
          DecodeReply(EncodeReply({request.error().id, 0, request.error().error}), Op::kRun);
      EXPECT_TRUE(sent.has_value());
    }
    const auto& [reply, op] = replies[random() % replies.size()];
    static_cast<void>(DecodeReply(Mutate(EncodeReply(reply), random), op));
  }
  EXPECT_GT(taken, 100u) << "the mutations no longer reach the fields";
}

TEST(Hostile, RandomBytesNeverCrash) {
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    static_cast<void>(DecodeRequest(bytes));
    static_cast<void>(DecodeReply(bytes, static_cast<Op>(random() % 14)));
  }
}

TEST(Hostile, FieldsOfEveryTypeEverywhere) {
  // Each field of each op is given a value of each type; whatever is said, it is said politely.
  const std::vector<json> values = {nullptr,
                                    true,
                                    1,
                                    -1,
                                    UINT64_MAX,
                                    1.5,
                                    "text",
                                    json::array(),
                                    json::array({json::array()}),
                                    json::object(),
                                    json::binary({1})};
  for (const Request& request : testing::SampleRequests()) {
    const json base = json::from_msgpack(EncodeRequest(request));
    for (const auto& [key, old] : base["args"].items()) {
      for (const json& value : values) {
        json changed = base;
        changed["args"][key] = value;
        const std::string error = RefusalOf(Pack(changed));
        // `raw` alone can contradict other fields, which are then named.
        if (!error.empty() && key != "raw") {
          EXPECT_NE(error.find(key), std::string::npos) << error;
        }
      }
    }
  }
}

TEST(Hostile, RepliesOfRequestsThatAreNotOpenAreRefused) {
  const std::string bytes = EncodeReply({5, 0, PingDone{}});
  const auto reply = DecodeReply(bytes, [](uint64_t) { return std::optional<Op>(); });
  EXPECT_FALSE(reply.has_value());
}

}  // namespace
}  // namespace mk::protocol
