#include "engine/pack/pack_writer.h"

#include <chrono>
#include <utility>

#include "engine/format/digest.h"
#include "engine/pack/pack_reader.h"

namespace mk {

PackSection NewSection(PackSectionType type, StateType element, size_t count) {
  PackSection section;
  section.type = static_cast<uint16_t>(type);
  section.element = element;
  section.dims[0] = static_cast<uint32_t>(count);
  return section;
}

PackSection NewSection(const StateSection& state) {
  PackSection section;
  section.type = static_cast<uint16_t>(state.array);
  section.layer = state.layer;
  section.element = state.type;
  section.dims = state.dims;
  return section;
}

Result<PackWriter> PackWriter::Create(const std::string& path, PackInfo info) {
  info.format = PackFormat::kMkmem2;
  info.flags |= kPackSampledModelId;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  info.created_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  uint64_t end = AlignPackOffset(kPackHeaderBytes) + info.sections.size() * kPackEntryBytes;
  for (PackSection& section : info.sections) {
    section.offset = AlignPackOffset(end);
    section.bytes = StateTypeBytes(section.element);
    for (const uint32_t dim : section.dims) section.bytes *= dim;
    end = section.offset + section.bytes;
  }
  info.file_bytes = end;
  Result<AtomicFile> file = AtomicFile::Create(path, 0600);
  if (!file) return Fail(file.error());
  if (Status room = file->Allocate(end); !room) return Fail(room.error());
  return PackWriter(std::move(*file), std::move(info));
}

Status PackWriter::Write(size_t index, std::span<const std::byte> bytes) {
  PackSection& section = info_.sections[index];
  if (bytes.size() != section.bytes) {
    return Fail(ErrorCode::kInternal, "a section of " + std::to_string(section.bytes) +
                                          " bytes was given " + std::to_string(bytes.size()));
  }
  section.digest = Xxh3Of(bytes);
  return file_.WriteAt(section.offset, bytes);
}

Result<PackInfo> PackWriter::Commit() {
  const std::vector<std::byte> table = EncodePackTable(info_);
  const auto header = EncodePackHeader(info_, table);
  if (Status written = file_.WriteAt(AlignPackOffset(kPackHeaderBytes), table); !written) {
    return Fail(written.error());
  }
  if (Status written = file_.WriteAt(0, header); !written) return Fail(written.error());
  if (Status done = file_.Commit(); !done) return Fail(done.error());
  return info_;
}

Status CheckPackTarget(const std::string& path, bool replace) {
  Result<OpenedFile> there = OpenForReading(path);
  if (!there) {
    // What cannot be opened for other reasons is told when it is written.
    if (there.error().code == ErrorCode::kInvalidArgument) return Fail(there.error());
    return {};
  }
  if (!replace) {
    return Fail(ErrorCode::kInvalidArgument, path + " exists",
                "choose another name, or replace it with --force");
  }
  // Damaged packs and those of other versions are packs all the same.
  const Result<PackReader> pack = PackReader::Open(path);
  if (pack || pack.error().code != ErrorCode::kInvalidArgument) return {};
  return Fail(ErrorCode::kInvalidArgument, path + " exists and is not a memory pack",
              "choose another name; only packs are replaced");
}

}  // namespace mk
