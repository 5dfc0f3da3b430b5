// The ZMTP codec against bytes written from the specification (rfc.zeromq.org, 23/ZMTP and
// 37/ZMTP), and against hostile bytes. The client's connection is tested against libzmq itself.

#include "protocol/zmtp.h"

#include <gtest/gtest.h>

#include <random>

namespace mk::protocol {
namespace {

// What a libzmq ROUTER sends first: greeting of version 3.1, then READY.
std::string RouterHello() {
  std::string bytes("\xFF\x00\x00\x00\x00\x00\x00\x00\x01\x7F\x03\x01NULL", 16);
  bytes.resize(64, '\0');
  bytes += std::string(
      "\x04\x29\x05READY\x0BSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00", 43);
  return bytes;
}

std::string Long(uint8_t flags, uint64_t size, const std::string& body) {
  std::string frame(1, static_cast<char>(flags | 2));
  for (int shift = 56; shift >= 0; shift -= 8) frame += static_cast<char>(size >> shift & 0xFF);
  return frame + body;
}

std::vector<std::string> Messages(ZmtpDecoder& decoder) {
  std::vector<std::string> all;
  std::string message;
  while (decoder.Next(message)) all.push_back(message);
  return all;
}

TEST(Zmtp, OurHelloIsAGreetingAndReady) {
  const std::string hello = ZmtpClientHello();
  ASSERT_GT(hello.size(), 64u);
  EXPECT_EQ(hello[0], '\xFF');
  EXPECT_EQ(hello[9], '\x7F');
  EXPECT_EQ(hello.substr(10, 2), std::string("\x03\x01", 2));
  EXPECT_EQ(hello.substr(12, 5), std::string("NULL\0", 5));
  EXPECT_EQ(hello.substr(64), std::string("\x04\x29\x05READY\x0BSocket-Type\x00\x00\x00\x06"
                                          "DEALER\x08Identity\x00\x00\x00\x00",
                                          43));
}

TEST(Zmtp, FramesAreShortUpTo255BytesAndLongBeyond) {
  EXPECT_EQ(ZmtpMessage(std::string(255, 'x')).substr(0, 2), std::string("\x00\xFF", 2));
  EXPECT_EQ(ZmtpMessage(std::string(256, 'x')).substr(0, 9),
            std::string("\x02\x00\x00\x00\x00\x00\x00\x01\x00", 9));
  EXPECT_EQ(ZmtpMessage(""), std::string("\x00\x00", 2));
}

TEST(Zmtp, MessagesAreTakenInPiecesOfAnySize) {
  const std::string bytes = RouterHello() + ZmtpMessage("one") +
                            std::string(
                                "\x01\x02"
                                "tw",
                                4) +
                            std::string("\x00\x01o", 3) + ZmtpMessage(std::string(300, 'z')) +
                            ZmtpMessage("");
  for (size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{65}, bytes.size()}) {
    ZmtpDecoder decoder;
    std::vector<std::string> all;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_TRUE(decoder.Feed(std::string_view(bytes).substr(at, piece)));
      for (auto& message : Messages(decoder)) all.push_back(message);
    }
    EXPECT_TRUE(decoder.ready());
    EXPECT_EQ(all, (std::vector<std::string>{"one", "two", std::string(300, 'z'), ""})) << piece;
  }
}

TEST(Zmtp, AShortBodyInALongFrameIsTaken) {
  ZmtpDecoder decoder;
  ASSERT_TRUE(decoder.Feed(RouterHello() + Long(0, 3, "abc")));
  EXPECT_EQ(Messages(decoder), std::vector<std::string>{"abc"});
}

TEST(Zmtp, PingsAreAnsweredWithTheirContext) {
  ZmtpDecoder decoder;
  ASSERT_TRUE(decoder.Feed(RouterHello()));
  EXPECT_EQ(decoder.TakeReplies(), "");
  ASSERT_TRUE(
      decoder.Feed(std::string("\x04\x0A\x04PING\x00\x64"
                               "ctx",
                               12)));
  EXPECT_EQ(decoder.TakeReplies(), std::string("\x04\x08\x04PONGctx", 10));
  EXPECT_EQ(decoder.TakeReplies(), "");
}

TEST(Zmtp, UnknownCommandsAreIgnored) {
  ZmtpDecoder decoder;
  ASSERT_TRUE(decoder.Feed(RouterHello() + std::string("\x04\x06\x05OTHER", 8) + ZmtpMessage("m")));
  EXPECT_EQ(Messages(decoder), std::vector<std::string>{"m"});
}

void ExpectBroken(const std::string& bytes, const char* what) {
  ZmtpDecoder decoder;
  const Status status = decoder.Feed(bytes);
  ASSERT_FALSE(status) << what;
  EXPECT_EQ(status.error().code, ErrorCode::kBadRequest);
  EXPECT_FALSE(decoder.Feed(RouterHello())) << "after an error nothing is taken";
}

TEST(Zmtp, StrangersAreRecognised) {
  ExpectBroken("HTTP/1.1 400 Bad Request\r\n", "http");
  ExpectBroken("S", "one byte is enough");
  std::string bytes = RouterHello();
  bytes[10] = 2;
  ExpectBroken(bytes, "version 2");
  bytes = RouterHello();
  bytes.replace(12, 5, "PLAIN");
  ExpectBroken(bytes, "another mechanism");
  bytes = RouterHello();
  bytes.replace(bytes.find("ROUTER"), 6, "PUBxxx");
  ExpectBroken(bytes, "another socket type");
}

TEST(Zmtp, FramingIsKept) {
  const std::string hello = RouterHello();
  ExpectBroken(hello + std::string("\x08\x00", 2), "reserved bits");
  ExpectBroken(hello + std::string("\x05\x01\x00", 3), "a command with MORE");
  ExpectBroken(hello + std::string("\x04\x00", 2), "a command without a name");
  ExpectBroken(hello + std::string("\x04\x03\x09xx", 5), "a name beyond the command");
  ExpectBroken(hello + std::string("\x01\x01x\x04\x05\x04PING", 10), "a command inside a message");
  ExpectBroken(hello + Long(4, 5000, ""), "an oversized command");
  ExpectBroken(hello + std::string("\x04\x05\x04PING", 7), "a PING without its time");
  ExpectBroken(hello.substr(0, 64) + ZmtpMessage("m"), "a message before READY");
  ExpectBroken(hello.substr(0, 64) + std::string("\x04\x08\x05ERROR\x00\x00", 10), "ERROR");
  ExpectBroken(hello.substr(0, 64) + std::string("\x04\x07\x05READY\x0B", 9), "a torn property");
  ExpectBroken(hello.substr(0, 64) + std::string("\x04\x0E\x05READY\x01k\x00\x00\x00\x09vv", 16),
               "a torn value of a property");
}

TEST(Zmtp, SoundCommandsAreRefusedInTheWrongPlace) {
  const std::string hello = RouterHello();
  const std::string ping("\x04\x07\x04PING\x00\x64", 9);
  ZmtpDecoder decoder;
  ASSERT_TRUE(decoder.Feed(hello + ping)) << "sound after READY";
  ExpectBroken(hello + std::string("\x01\x01x", 3) + ping, "a command inside a message");
  ExpectBroken(hello.substr(0, 64) + ping, "a command before READY");
  ExpectBroken(hello + std::string("\x04\x18\x04PING\x00\x64", 9) + std::string(17, 'c'),
               "a PING with 17 bytes of context");
  std::string signature = hello.substr(0, 10);
  signature[9] = '\x7E';
  ExpectBroken(signature, "another signature");
  ASSERT_FALSE(decoder.Feed(std::string("\x08\x00", 2)));
  EXPECT_FALSE(decoder.Feed(ping)) << "after an error nothing is taken";
}

TEST(Zmtp, MessagesOverTheLimitAreRefusedBeforeTheyCome) {
  ExpectBroken(RouterHello() + Long(0, UINT64_MAX, ""), "16 EiB");
  ExpectBroken(RouterHello() + Long(0, kLimits.message_bytes + 1, ""), "one byte too many");
  ZmtpDecoder decoder;
  EXPECT_TRUE(decoder.Feed(RouterHello() + Long(0, kLimits.message_bytes, "")));
}

TEST(Zmtp, TheLimitHoldsForAllFramesOfAMessageTogether) {
  ZmtpDecoder decoder(10);
  ASSERT_TRUE(decoder.Feed(RouterHello()));
  ASSERT_TRUE(
      decoder.Feed(std::string("\x01\x06"
                               "abcdef",
                               8)));
  EXPECT_FALSE(
      decoder.Feed(std::string("\x00\x05"
                               "ghijk",
                               7)));
}

TEST(Zmtp, RandomAndMutatedBytesNeverCrash) {
  std::mt19937 random(11);
  const std::string good = RouterHello() + ZmtpMessage("hello") +
                           std::string(
                               "\x04\x0A\x04PING\x00\x64"
                               "ctx",
                               12) +
                           Long(1, 300, std::string(300, 'q')) + ZmtpMessage("end");
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (int i = 0; i < 1 + round % 4; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    ZmtpDecoder decoder(4096);
    size_t at = 0;
    while (at < bytes.size()) {
      const size_t piece = 1 + random() % 100;
      if (!decoder.Feed(std::string_view(bytes).substr(at, piece))) break;
      at += piece;
    }
    for (const auto& message : Messages(decoder)) EXPECT_LE(message.size(), 4096u);
  }
}

}  // namespace
}  // namespace mk::protocol
