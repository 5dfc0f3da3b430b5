#include "engine/shadow/shadow_file.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <random>

#include "engine/format/digest.h"
#include "tests/unit/format/raw_model.h"

namespace mk {
namespace {

using test::TempDirectory;

template <typename T>
void Put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string CodebookBytes(size_t count, float first) {
  std::string bytes;
  for (size_t i = 0; i < count * 4096; ++i) Put(bytes, first + static_cast<float>(i));
  return bytes;
}

// Two layers, 3 and 5, of four experts of 32 groups per matrix.
std::string Version1() {
  std::string bytes = "MKSH0001";
  for (const uint32_t number : {2u, 3u, 5u, 4u, 32u}) Put(bytes, number);
  bytes += CodebookBytes(1, 0.5f);
  for (size_t i = 0; i < 2 * 4 * 3 * 32; ++i) bytes += static_cast<char>(i * 7);
  return bytes;
}

std::string DataBytes(size_t count) {
  std::string bytes;
  for (size_t i = 0; i < count; ++i) bytes += static_cast<char>(i * 11 >> 2);
  return bytes;
}

uint64_t Digest(std::string_view bytes) {
  return Xxh3Of(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// The same in version 2, with two stages.
std::string Version2() {
  const std::string data = DataBytes(2 * 4 * 3 * 32 * 2);
  std::string head = "MKSH0002";
  for (const uint32_t number : {2u, 4u, 32u, 2u}) Put(head, number);
  head += "0123456789abcdef0123456789abcdef";
  Put(head, 0.75);
  Put(head, 1.25);
  head.resize(128, '\0');
  for (const uint32_t layer : {3u, 5u}) Put(head, layer);
  head.resize(192, '\0');
  head += CodebookBytes(2, -7.0f);
  for (size_t e = 0; e < 8; ++e) Put(head, Digest(std::string_view(data).substr(e * 192, 192)));
  head.resize((head.size() + 4095) / 4096 * 4096, '\0');
  const uint64_t digest = Digest(head);
  std::memcpy(&head[72], &digest, sizeof digest);
  return head + data;
}

std::string Resealed(std::string bytes, size_t head_bytes) {
  std::memset(&bytes[72], 0, 8);
  const uint64_t digest = Digest(std::string_view(bytes).substr(0, head_bytes));
  std::memcpy(&bytes[72], &digest, sizeof digest);
  return bytes;
}

std::string ErrorOf(const TempDirectory& folder, const std::string& bytes) {
  const auto file = ShadowFile::Open(folder.Write("bad.shadows", bytes));
  return file ? "" : file.error().message;
}

TEST(ShadowFile, ReadsVersion1) {
  const TempDirectory folder;
  const auto file = ShadowFile::Open(folder.Write("a.shadows", Version1()));
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->info().version, 1u);
  EXPECT_EQ(file->info().layers, (std::vector<uint32_t>{3, 5}));
  EXPECT_EQ(file->info().experts, 4u);
  EXPECT_EQ(file->info().groups, 32u);
  EXPECT_EQ(file->info().data_offset(), 16404u + 4 * 2);
  EXPECT_EQ(file->codebooks()[17], 17.5f);
  std::vector<std::byte> bytes(2 * 96);
  ASSERT_TRUE(file->Read(1, 2, 2, bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(std::to_integer<uint8_t>(bytes[i]), static_cast<uint8_t>((6 * 96 + i) * 7));
  }
}

TEST(ShadowFile, ReadsVersion2) {
  const TempDirectory folder;
  const auto file = ShadowFile::Open(folder.Write("a.shadows", Version2()));
  ASSERT_TRUE(file) << file.error().ToString();
  EXPECT_EQ(file->info().version, 2u);
  EXPECT_EQ(file->info().stages, 2u);
  EXPECT_EQ(file->info().fingerprint, "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(file->info().relative_error, 0.75);
  EXPECT_EQ(file->info().gain, 1.25);
  EXPECT_EQ(file->codebooks()[4096 + 3], 4092.0f);
  std::vector<std::byte> bytes(8 * 192);
  for (size_t row = 0; row < 2; ++row) {
    ASSERT_TRUE(file->Read(row, 0, 4, std::span(bytes).subspan(row * 4 * 192, 4 * 192)));
  }
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
            DataBytes(8 * 192));
}

TEST(ShadowFile, EncodesWhatItReads) {
  for (const std::string& bytes : {Version1(), Version2()}) {
    const auto head = DecodeShadowHead(bytes, bytes.size());
    ASSERT_TRUE(head) << head.error().ToString();
    EXPECT_EQ(EncodeShadowHead(*head), bytes.substr(0, head->info.data_offset()));
  }
}

TEST(ShadowFile, RefusesOtherFiles) {
  const TempDirectory folder;
  EXPECT_NE(ErrorOf(folder, "").find("no file of shadows"), std::string::npos);
  EXPECT_NE(ErrorOf(folder, "MKIM0002 and so on, on and on").find("no file"), std::string::npos);
  EXPECT_NE(ErrorOf(folder, "MKSH0003" + Version1().substr(8)), "");
  EXPECT_FALSE(ShadowFile::Open(folder.Path("none")));
}

TEST(ShadowFile, RefusesEveryOtherLength) {
  const TempDirectory folder;
  for (const std::string& good : {Version1(), Version2()}) {
    const size_t lengths[] = {1, 8, 11, 12, 15, 16, 19, 20, 127, 128, 5000, good.size() - 1};
    for (const size_t length : lengths) EXPECT_NE(ErrorOf(folder, good.substr(0, length)), "");
    EXPECT_NE(ErrorOf(folder, good + "x"), "");
    EXPECT_EQ(ErrorOf(folder, good), "");
  }
}

// Numbers that would make a reader allocate or read far too much, with a digest that fits.
TEST(ShadowFile, RefusesNumbersThatCannotBe) {
  const TempDirectory folder;
  const auto with = [](std::string bytes, size_t at, uint32_t value) {
    std::memcpy(&bytes[at], &value, sizeof value);
    return bytes;
  };
  const size_t head_bytes = Version2().size() - 8 * 192;
  for (const uint32_t value : {0u, 1u, 7u, 4096u, 4097u, 0x10000u, 0x7fffffffu, 0xffffffffu}) {
    for (const size_t at : {8u, 20u, 24u}) {
      EXPECT_NE(ErrorOf(folder, with(Version1(), at, value)), "") << at << " " << value;
    }
    for (const size_t at : {8u, 12u, 16u, 20u}) {
      const std::string bytes = with(Version2(), at, value);
      EXPECT_NE(ErrorOf(folder, bytes), "") << at << " " << value;
      EXPECT_NE(ErrorOf(folder, Resealed(bytes, head_bytes)), "") << at << " " << value;
    }
  }
  // Layers out of order, or beyond what can be.
  EXPECT_NE(ErrorOf(folder, with(Version1(), 16, 3)), "");
  EXPECT_NE(ErrorOf(folder, with(Version1(), 16, 4096)), "");
  EXPECT_NE(ErrorOf(folder, Resealed(with(Version2(), 132, 2), head_bytes)), "");
  // A codebook that is no number.
  EXPECT_NE(ErrorOf(folder, with(Version1(), 28 + 400, 0x7fc00000u)), "");
  EXPECT_NE(ErrorOf(folder, Resealed(with(Version2(), 192 + 400, 0x7f800000u), head_bytes)), "");
}

TEST(ShadowFile, EveryDamagedByteOfVersion2IsFound) {
  const TempDirectory folder;
  const std::string good = Version2();
  const size_t head_bytes = good.size() - 8 * 192;
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = good;
    const size_t at = i < 200 ? random() % 260 : random() % bytes.size();
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    const auto file = ShadowFile::Open(folder.Write("bad.shadows", bytes));
    if (at < head_bytes) {
      EXPECT_FALSE(file) << at;
      continue;
    }
    ASSERT_TRUE(file) << at;
    std::vector<std::byte> out(4 * 192);
    const size_t damaged = (at - head_bytes) / 192;
    for (size_t row = 0; row < 2; ++row) {
      EXPECT_EQ(file->Read(row, 0, 4, out).has_value(), damaged / 4 != row) << at;
    }
  }
}

TEST(ShadowFile, AFileThatIsCutGivesAnError) {
  const TempDirectory folder;
  const std::string path = folder.Write("a.shadows", Version2());
  const auto file = ShadowFile::Open(path);
  ASSERT_TRUE(file);
  ASSERT_EQ(::truncate(path.c_str(), 9000), 0);
  std::vector<std::byte> out(4 * 192);
  EXPECT_FALSE(file->Read(1, 0, 4, out));
}

}  // namespace
}  // namespace mk
