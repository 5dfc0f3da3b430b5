// The folder of prepared spines: what is taken from it, what is refused, what is kept.

#include "engine/format/spine_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/file.h"
#include "engine/format/spine_writer.h"
#include "tests/unit/base/temp_directory.h"

namespace mk {
namespace {

namespace fs = std::filesystem;
using test::TempDirectory;

// Two whole blocks and a part of one.
constexpr size_t kBytes = 2 * (size_t{4} << 20) + 12345;
// Where the spine begins in a file of three blocks.
constexpr size_t kDataStart = 4096;

SpineKey SomeKey() {
  SpineKey key;
  key.fingerprint = "0123456789abcdef0123456789abcdef";
  key.form = "q8";
  key.version = 7;
  key.layout = "00112233445566778899aabbccddeeff";
  key.model_bytes = 1000;
  key.model_mtime_ns = 123456789;
  key.bytes = kBytes;
  return key;
}

std::vector<std::byte> SomeSpine(uint32_t seed = 1, size_t bytes = kBytes) {
  std::vector<std::byte> spine(bytes);
  uint32_t state = seed;
  for (std::byte& b : spine) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::byte>(state >> 24);
  }
  return spine;
}

const auto kGoOn = [] { return true; };

class SpineCache : public ::testing::Test {
 protected:
  SpineCache() {
    options_.directory = directory_.Path("cache/spines");
    options_.limit = 1 << 30;
    options_.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_.emplace_back(line);
    };
  }

  void Keep(const SpineKey& key = SomeKey()) {
    KeepSpine(options_, key, SomeSpine(1, key.bytes), kGoOn);
  }
  std::string PathOf(const SpineKey& key = SomeKey()) const {
    return options_.directory + "/" + key.FileName();
  }

  // The spine as a load gets it; empty when it is refused.
  std::vector<std::byte> Get(const SpineKey& key = SomeKey()) const {
    const std::optional<SpineFile> file = FindSpine(options_, key);
    if (!file) return {};
    std::vector<std::byte> spine(key.bytes);
    for (size_t i = 0; i < file->blocks(); ++i) {
      const Result<size_t> read = file->ReadBlock(i, spine);
      if (read) continue;
      last_error_ = read.error().message;
      return {};
    }
    return spine;
  }

  // Changes bytes of the file.
  template <typename T>
  void Patch(size_t offset, T value) const {
    std::fstream file(PathOf(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
    ASSERT_TRUE(file.good());
  }
  // Makes the header's own checksum right again, as somebody would who forges one.
  void SignHeader() const {
    const std::string content = ReadWholeFile(PathOf(), 1 << 30).value();
    Patch(136, uint64_t{XXH3_64bits(content.data(), 136)});
  }

  // The file is refused for a reason that contains `reason`, which is told once; it can be
  // replaced.
  void ExpectRefused(const std::string& reason) {
    log_.clear();
    EXPECT_FALSE(FindSpine(options_, SomeKey()).has_value());
    ASSERT_EQ(log_.size(), 1u);
    EXPECT_NE(log_[0].find(reason), std::string::npos) << log_[0];
    EXPECT_NE(log_[0].find(options_.directory), std::string::npos) << log_[0];
    Keep();
    EXPECT_EQ(Get(), SomeSpine());
  }

  TempDirectory directory_;
  SpineCacheOptions options_;
  std::mutex mutex_;
  std::vector<std::string> log_;
  mutable std::string last_error_;
};

TEST_F(SpineCache, GivesBackWhatWasKept) {
  EXPECT_FALSE(FindSpine(options_, SomeKey()).has_value());
  EXPECT_TRUE(log_.empty());  // that there is none is no news
  Keep();
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_EQ(log_[0], "wrote " + PathOf());
  EXPECT_EQ(Get(), SomeSpine());
  EXPECT_EQ(fs::file_size(PathOf()), kDataStart + kBytes);
}

TEST_F(SpineCache, EveryNumberOfBlocksFits) {
  for (const size_t bytes : {size_t{1}, kSpineBlock - 1, kSpineBlock, kSpineBlock + 1}) {
    SpineKey key = SomeKey();
    key.bytes = bytes;
    Keep(key);
    EXPECT_EQ(Get(key), SomeSpine(1, bytes)) << bytes;
  }
}

TEST_F(SpineCache, FilesAndFoldersAreClosedToOthers) {
  const mode_t before = ::umask(0);
  Keep();
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat(PathOf().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  for (const std::string& folder : {options_.directory, directory_.Path("cache")}) {
    ASSERT_EQ(::stat(folder.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0700u) << folder;
  }
}

TEST_F(SpineCache, DamageIsFound) {
  Keep();
  Patch(0, 'm');
  ExpectRefused("not a spine file");
  Patch(8, uint32_t{2});
  ExpectRefused("another version of the format");
  Patch(20, 'x');  // any byte of the header
  ExpectRefused("damaged header");
  Patch(136, uint64_t{0});
  ExpectRefused("damaged header");
  Patch(256 + 8, uint64_t{1});
  ExpectRefused("damaged table");
}

TEST_F(SpineCache, HeadersOfSomethingElseAreRefused) {
  struct Change {
    size_t offset;
    const char* reason;
  };
  const Change changes[] = {
      {12, "another layout"},
      {16, "another precision"},
      {32, "another model"},
      {63, "another model"},
      {64, "another layout"},
      {95, "another layout"},
      {96, "before it was changed"},
      {104, "before it was changed"},
      {112, "another number of weights"},
      {119, "another number of weights"},
      {120, "blocks of another size"},
      {128, "damaged table"},
  };
  Keep();
  for (const Change& change : changes) {
    SCOPED_TRACE(change.offset);
    Patch(change.offset, uint8_t{0x5a});
    SignHeader();
    ExpectRefused(change.reason);
  }
}

TEST_F(SpineCache, OtherKeysFindNothing) {
  Keep();
  SpineKey key = SomeKey();
  key.model_mtime_ns += 1;
  EXPECT_FALSE(FindSpine(options_, key).has_value());
  key = SomeKey();
  key.layout[5] = 'f';
  EXPECT_FALSE(FindSpine(options_, key).has_value());
  key = SomeKey();
  key.form = "bf16";
  EXPECT_FALSE(FindSpine(options_, key).has_value());
  EXPECT_TRUE(FindSpine(options_, SomeKey()).has_value());
}

TEST_F(SpineCache, WeightsThatAreDamagedAreFoundInEveryBlock) {
  Keep();
  const std::string sound = ReadWholeFile(PathOf(), 1 << 30).value();
  for (const size_t at : {size_t{0}, kSpineBlock - 1, kSpineBlock, kBytes - 1}) {
    Patch(kDataStart + at, static_cast<char>(sound[kDataStart + at] ^ 1));
    EXPECT_TRUE(Get().empty()) << at;
    EXPECT_NE(last_error_.find("is damaged in the"), std::string::npos) << last_error_;
    Patch(kDataStart + at, sound[kDataStart + at]);
    EXPECT_EQ(Get(), SomeSpine());
  }
}

TEST_F(SpineCache, FilesOfAnotherLengthAreRefused) {
  Keep();
  const size_t right = fs::file_size(PathOf());
  fs::resize_file(PathOf(), right - 1);
  ExpectRefused("bytes, not " + std::to_string(right));
  fs::resize_file(PathOf(), right + 1);
  ExpectRefused("bytes, not " + std::to_string(right));
  fs::resize_file(PathOf(), 255);
  ExpectRefused("too short for a header");
  fs::resize_file(PathOf(), 0);
  ExpectRefused("too short for a header");
}

TEST_F(SpineCache, AFileThatIsCutWhileItIsReadIsAnError) {
  Keep();
  const std::optional<SpineFile> file = FindSpine(options_, SomeKey());
  ASSERT_TRUE(file);
  fs::resize_file(PathOf(), kDataStart + 10);
  std::vector<std::byte> spine(kBytes);
  EXPECT_FALSE(file->ReadBlock(0, spine));
}

TEST_F(SpineCache, FilesThatOthersCanTouchAreRefused) {
  Keep();
  for (const mode_t mode : {0644, 0620, 0602}) {
    ASSERT_EQ(::chmod(PathOf().c_str(), mode), 0);
    ExpectRefused("open to other users");
  }
  if (::geteuid() != 0) return;  // only root can give files away
  ASSERT_EQ(::chown(PathOf().c_str(), 65534, 65534), 0);
  ExpectRefused("another user");
}

TEST_F(SpineCache, LinksAndOthersThatAreNoFilesAreRefused) {
  Keep();
  const std::string elsewhere = directory_.Path("elsewhere");
  fs::rename(PathOf(), elsewhere);
  fs::create_symlink(elsewhere, PathOf());
  ExpectRefused("symbolic link");
  fs::remove(PathOf());
  ASSERT_EQ(::mkfifo(PathOf().c_str(), 0600), 0);
  ExpectRefused("not a regular file");
}

TEST_F(SpineCache, AFolderThatOthersCanWriteToIsNotUsed) {
  Keep();
  ASSERT_EQ(::chmod(options_.directory.c_str(), 0777), 0);
  log_.clear();
  EXPECT_FALSE(FindSpine(options_, SomeKey()).has_value());
  Keep();
  ASSERT_EQ(log_.size(), 2u);
  for (const std::string& line : log_) {
    EXPECT_NE(line.find("can be written to by others"), std::string::npos) << line;
  }
}

TEST_F(SpineCache, NothingIsKeptWhereNothingCanBe) {
  std::ofstream(directory_.Path("cache")) << "a file";
  Keep();
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("not kept"), std::string::npos) << log_[0];
  EXPECT_FALSE(FindSpine(options_, SomeKey()).has_value());
  options_.directory = "/proc/none/spines";
  Keep();
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_NE(log_[1].find("not kept"), std::string::npos) << log_[1];
}

TEST_F(SpineCache, TheLeastRecentlyUsedMakeRoom) {
  SpineKey keys[4];
  for (int i = 0; i < 4; ++i) {
    keys[i] = SomeKey();
    keys[i].fingerprint[0] = static_cast<char>('a' + i);
    keys[i].bytes = 1 << 20;
  }
  const auto age = [&](const SpineKey& key, int hours) {
    fs::last_write_time(PathOf(key), fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  options_.limit = 3'300'000;  // three, headers included
  for (int i = 0; i < 3; ++i) {
    Keep(keys[i]);
    age(keys[i], 10 - i);
  }
  EXPECT_EQ(Get(keys[0]), SomeSpine(1, 1 << 20));  // used: the second is the oldest now
  log_.clear();
  Keep(keys[3]);
  EXPECT_TRUE(fs::exists(PathOf(keys[0])));
  EXPECT_FALSE(fs::exists(PathOf(keys[1])));
  EXPECT_TRUE(fs::exists(PathOf(keys[2])));
  EXPECT_TRUE(fs::exists(PathOf(keys[3])));
  ASSERT_EQ(log_.size(), 2u);
  EXPECT_NE(log_[0].find("removed " + PathOf(keys[1])), std::string::npos) << log_[0];
}

TEST_F(SpineCache, ASpineThatIsLargerThanAllTogetherIsNotKept) {
  options_.limit = kBytes - 1;
  Keep();
  ASSERT_EQ(log_.size(), 1u);
  EXPECT_NE(log_[0].find("not kept"), std::string::npos) << log_[0];
  EXPECT_FALSE(fs::exists(PathOf()));
}

TEST_F(SpineCache, LeftoversOfDeadWritersAreRemovedAndThoseOfOthersAreNot) {
  Keep();
  const std::string dead = PathOf() + ".tmp.1234.1", alive = PathOf() + ".tmp.1234.2";
  std::ofstream(dead) << "half a spine";
  std::ofstream(alive) << "half a spine";
  std::ofstream(options_.directory + "/note.txt") << "not ours";
  const UniqueFd held(::open(alive.c_str(), O_RDONLY));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  Keep();
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(options_.directory + "/note.txt"));
}

TEST_F(SpineCache, WritingThatIsGivenUpLeavesNothing) {
  int blocks = 0;
  KeepSpine(options_, SomeKey(), SomeSpine(), [&] { return ++blocks < 3; });
  EXPECT_EQ(blocks, 3);
  EXPECT_TRUE(fs::is_empty(options_.directory));
  EXPECT_TRUE(log_.empty());
}

// At no moment is there a file under the final name that is not whole.
TEST_F(SpineCache, ManyWritersAndReadersAtOnce) {
  const std::vector<std::byte> spine = SomeSpine();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        KeepSpine(options_, SomeKey(), spine, kGoOn);
        const std::vector<std::byte> got = [&] {
          const std::optional<SpineFile> file = FindSpine(options_, SomeKey());
          std::vector<std::byte> out(kBytes);
          for (size_t b = 0; file && b < file->blocks(); ++b) {
            if (!file->ReadBlock(b, out)) out.clear();
          }
          return file ? out : std::vector<std::byte>{};
        }();
        if (got != spine) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(options_.directory), fs::directory_iterator()), 1);
}

TEST_F(SpineCache, TheWriterKeepsASpineInTheBackground) {
  const std::vector<std::byte> spine = SomeSpine();
  {
    const SpineWriter writer(options_, SomeKey(), spine);
    const auto told = [&] {
      const std::lock_guard lock(mutex_);
      return !log_.empty();
    };
    while (!told()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(Get(), spine);
}

TEST_F(SpineCache, TheWriterEndsEarlyWhenItsModelGoes) {
  const std::vector<std::byte> spine = SomeSpine();
  for (int i = 0; i < 20; ++i) const SpineWriter writer(options_, SomeKey(), spine);
  // Whole or not at all.
  if (fs::exists(PathOf())) {
    EXPECT_EQ(Get(), spine);
  }
  size_t others = 0;
  if (fs::exists(options_.directory)) {
    for (const auto& entry : fs::directory_iterator(options_.directory)) {
      others += entry.path() != PathOf();
    }
  }
  EXPECT_EQ(others, 0u);
}

}  // namespace
}  // namespace mk
