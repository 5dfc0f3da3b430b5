#include "engine/pack/pack_copy.h"

#include <new>
#include <utility>

#include "engine/pack/pack_reader.h"
#include "engine/pack/pack_writer.h"

namespace mk {

Result<PackInfo> CopyPack(const std::string& from, const std::string& lineage,
                          const PackTarget& to) {
  Result<PackReader> pack = PackReader::Open(from);
  if (!pack) return Fail(pack.error());
  if (pack->info().format != PackFormat::kMkmem2) {
    return Fail(ErrorCode::kUnsupported, from + " is of a format that tells no lineage");
  }
  if (Status free = CheckPackTarget(to.path, to.replace); !free) return Fail(free.error());
  PackInfo info = pack->info();
  info.sections.clear();
  std::vector<const PackSection*> sources;
  if (!lineage.empty()) {
    info.sections.push_back(
        NewSection(PackSectionType::kLineage, StateType::kBytes, lineage.size()));
    sources.push_back(nullptr);
  }
  for (const PackSection& section : pack->info().sections) {
    if (section.Is(PackSectionType::kLineage)) continue;
    info.sections.push_back(section);
    sources.push_back(&section);
  }
  Result<PackWriter> writer = PackWriter::Create(to.path, std::move(info));
  if (!writer) return Fail(writer.error());
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == nullptr) {
      const auto bytes = std::as_bytes(std::span(lineage.data(), lineage.size()));
      if (Status written = writer->Write(i, bytes); !written) return Fail(written.error());
      continue;
    }
    Result<std::vector<std::byte>> bytes = pack->Read(*sources[i]);
    if (!bytes) return Fail(bytes.error());
    if (Status written = writer->Write(i, *bytes); !written) return Fail(written.error());
  }
  return writer->Commit();
}

}  // namespace mk
