#include "engine/format/spine_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/base/atomic_file.h"
#include "engine/format/digest.h"

namespace mk {
namespace {

static_assert(std::endian::native == std::endian::little, "headers are written as they lie");

constexpr char kMagic[8] = {'M', 'K', 'S', 'P', 'I', 'N', 'E', '\n'};
constexpr uint32_t kFormat = 1;
constexpr size_t kTableStart = 256;
constexpr size_t kDataAlignment = 4096;
// Blocks to ask the disk for before their turn comes.
constexpr size_t kBlocksAhead = 8;
// Written back to the disk at least this often, so that nobody waits long for the end.
constexpr size_t kSyncBytes = size_t{64} << 20;

struct Header {
  char magic[8];
  uint32_t format;
  uint32_t version;
  char form[16];
  char fingerprint[32];
  char layout[32];
  uint64_t model_bytes;
  int64_t model_mtime_ns;
  uint64_t bytes;
  uint64_t block_bytes;
  uint64_t table_digest;
  uint64_t header_digest;
};
static_assert(sizeof(Header) == 144 && std::has_unique_object_representations_v<Header>);

template <size_t N>
void CopyText(const std::string& text, char (&out)[N]) {
  std::memcpy(out, text.data(), std::min(text.size(), N));
}

// The header that a file for this key has, but for the digests.
Header HeaderOf(const SpineKey& key) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.format = kFormat;
  header.version = key.version;
  CopyText(key.form, header.form);
  CopyText(key.fingerprint, header.fingerprint);
  CopyText(key.layout, header.layout);
  header.model_bytes = key.model_bytes;
  header.model_mtime_ns = key.model_mtime_ns;
  header.bytes = key.bytes;
  header.block_bytes = kSpineBlock;
  return header;
}

uint64_t DigestOf(const Header& header) {
  return Xxh3Of(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_digest)));
}

uint64_t BlocksOf(uint64_t bytes) {
  return bytes / kSpineBlock + (bytes % kSpineBlock != 0);
}

uint64_t DataStartOf(uint64_t blocks) {
  const uint64_t end = kTableStart + blocks * sizeof(uint64_t);
  return (end + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
}

Error Unfit(const std::string& path, const std::string& problem) {
  return {ErrorCode::kCorrupt, path + " " + problem, "remove it if that happens again"};
}

// A regular file of ours that is closed to others. Symbolic links are not followed.
Result<UniqueFd> OpenOwn(const std::string& path, uint64_t& size) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!fd && errno == ELOOP) return Fail(Unfit(path, "is a symbolic link"));
  if (!fd) return Fail(SystemError(errno, "open", path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Fail(SystemError(errno, "examine", path));
  if (!S_ISREG(info.st_mode)) return Fail(Unfit(path, "is not a regular file"));
  if (info.st_uid != ::geteuid()) return Fail(Unfit(path, "belongs to another user"));
  if ((info.st_mode & 077) != 0) return Fail(Unfit(path, "is open to other users"));
  size = static_cast<uint64_t>(info.st_size);
  return fd;
}

// What differs between a header that was read and the one that is needed; nullptr when nothing.
const char* Difference(const Header& read, const Header& wanted) {
  const auto differs = [](const auto& a, const auto& b) {
    return std::memcmp(&a, &b, sizeof a) != 0;
  };
  if (differs(read.magic, wanted.magic)) return "is not a spine file";
  if (read.format != wanted.format) return "is of another version of the format";
  if (read.header_digest != DigestOf(read)) return "has a damaged header";
  if (read.version != wanted.version || differs(read.layout, wanted.layout)) {
    return "is of another layout of the weights";
  }
  if (differs(read.form, wanted.form)) return "is of another precision";
  if (differs(read.fingerprint, wanted.fingerprint)) return "is of another model";
  if (read.model_bytes != wanted.model_bytes || read.model_mtime_ns != wanted.model_mtime_ns) {
    return "is of the model file before it was changed";
  }
  if (read.bytes != wanted.bytes) return "has another number of weights";
  if (read.block_bytes != wanted.block_bytes) return "has blocks of another size";
  return nullptr;
}

template <typename T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

std::string SpineKey::FileName() const {
  return fingerprint + "-" + form + "-" + std::to_string(version) + ".spine";
}

Result<SpineFile> SpineFile::Open(const std::string& path, const SpineKey& key) {
  uint64_t size = 0;
  auto fd = OpenOwn(path, size);
  if (!fd) return Fail(fd.error());
  if (size < kTableStart) return Fail(Unfit(path, "is too short for a header"));
  Header header{};
  if (Status read = ReadAt(fd->get(), 0, BytesOf(header), path); !read) return Fail(read.error());
  if (const char* problem = Difference(header, HeaderOf(key))) return Fail(Unfit(path, problem));
  // From here on sizes are those of the key, which the load has counted itself.
  SpineFile file;
  const uint64_t blocks = BlocksOf(key.bytes);
  file.data_start_ = DataStartOf(blocks);
  if (size != file.data_start_ + key.bytes) {
    return Fail(Unfit(path, "has " + std::to_string(size) + " bytes, not " +
                                std::to_string(file.data_start_ + key.bytes)));
  }
  file.digests_.resize(static_cast<size_t>(blocks));
  const std::span<std::byte> table = std::as_writable_bytes(std::span(file.digests_));
  if (Status read = ReadAt(fd->get(), kTableStart, table, path); !read) return Fail(read.error());
  if (Xxh3Of(table) != header.table_digest) return Fail(Unfit(path, "has a damaged table"));
  file.path_ = path;
  file.fd_ = std::move(*fd);
  return file;
}

Result<size_t> SpineFile::ReadBlock(size_t index, std::span<std::byte> spine) const {
  const size_t begin = index * kSpineBlock;
  const std::span<std::byte> block =
      spine.subspan(begin, std::min(kSpineBlock, spine.size() - begin));
  ReadAhead(fd_.get(), data_start_ + begin + kBlocksAhead * kSpineBlock, kSpineBlock);
  if (Status read = ReadAt(fd_.get(), data_start_ + begin, block, path_); !read) {
    return Fail(read.error());
  }
  if (Xxh3Of(block) == digests_[index]) return block.size();
  return Fail(Unfit(path_, "is damaged in the " + std::to_string(block.size()) +
                               " bytes of weights from " + std::to_string(begin) + " on"));
}

void SpineFile::Touch() const {
  (void)::futimens(fd_.get(), nullptr);
}

Status WriteSpineFile(const std::string& path, const SpineKey& key,
                      std::span<const std::byte> spine, const std::function<bool()>& go_on) {
  // Several threads may write spines of one model at once; each has a file of its own.
  Result<AtomicFile> file = AtomicFile::Create(path, 0600, std::to_string(::gettid()));
  if (!file) return Fail(file.error());
  (void)::flock(file->fd(), LOCK_EX | LOCK_NB);
  const auto blocks = static_cast<size_t>(BlocksOf(spine.size()));
  const uint64_t data_start = DataStartOf(blocks);
  if (Status room = file->Allocate(data_start + spine.size()); !room) return room;
  std::vector<uint64_t> digests(blocks);
  for (size_t i = 0; i < blocks; ++i) {
    if (!go_on()) return Fail(ErrorCode::kCancelled, "writing " + path + " was given up");
    const size_t begin = i * kSpineBlock;
    const std::span<const std::byte> block =
        spine.subspan(begin, std::min(kSpineBlock, spine.size() - begin));
    digests[i] = Xxh3Of(block);
    if (Status written = file->WriteAt(data_start + begin, block); !written) return written;
    if ((begin + kSpineBlock) % kSyncBytes == 0 && ::fdatasync(file->fd()) != 0) {
      return Fail(SystemError(errno, "sync", file->temp_path()));
    }
  }
  const std::span<std::byte> table = std::as_writable_bytes(std::span(digests));
  if (Status written = file->WriteAt(kTableStart, table); !written) return written;
  Header header = HeaderOf(key);
  header.table_digest = Xxh3Of(table);
  header.header_digest = DigestOf(header);
  if (Status written = file->WriteAt(0, BytesOf(header)); !written) return written;
  return file->Commit();
}

}  // namespace mk
