// States of sequences as arrays: what does not depend on the architecture.

#include <cstdint>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "engine/arch/mkim_model.h"

namespace mk {
namespace {

Error NoRoom() {
  return {ErrorCode::kOutOfMemory, "no memory for the state of a sequence", "end other sequences"};
}

// The arrays of rows multiplied out are the only ones whose form can be chosen.
bool IsExpanded(StateArray array) {
  return array == StateArray::kExpandedKeys || array == StateArray::kExpandedValues;
}

}  // namespace

Result<const ModelSequence*> MkimModel::OwnSequence(const Sequence& sequence) const {
  const auto* own = dynamic_cast<const ModelSequence*>(&sequence);
  if (own == nullptr || own->owner() != this) {
    return Fail(ErrorCode::kInvalidArgument, "the sequence belongs to another model",
                "save it with the model that made it");
  }
  if (own->broken()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the sequence was left unusable by an earlier error and cannot be saved",
                "start a new sequence");
  }
  return own;
}

size_t MkimModel::OwnBytes(const Sequence& sequence) const {
  const auto* own = dynamic_cast<const ModelSequence*>(&sequence);
  return own != nullptr && own->owner() == this ? own->own_bytes() : 0;
}

std::vector<StatePage> MkimModel::Pages(const Sequence& sequence) const {
  std::vector<StatePage> pages;
  const auto* own = dynamic_cast<const ModelSequence*>(&sequence);
  if (own == nullptr || own->owner() != this) return pages;
  own->VisitPages([&](const SharedPage& page) {
    if (page.size() > 0) pages.push_back({page.data(), page.size()});
  });
  return pages;
}

Result<StateKey> MkimModel::KeyOf(const Sequence& sequence) const {
  Result<const ModelSequence*> own = OwnSequence(sequence);
  if (!own) return Fail(own.error());
  return StateKey{(*own)->options(), sequence.length(), (*own)->kept_rewindable()};
}

Result<std::vector<StateSection>> MkimModel::Sections(const StateKey& key) const {
  if (key.length > std::numeric_limits<uint32_t>::max() || key.rewindable > key.length) {
    return Fail(ErrorCode::kInvalidArgument, "no state has " + std::to_string(key.length) +
                                                 " tokens of which it can forget " +
                                                 std::to_string(key.rewindable));
  }
  try {
    return LayOutState(key);
  } catch (const std::bad_alloc&) {
    return Fail(NoRoom());
  }
}

Status MkimModel::Save(const Sequence& sequence, const StateKey& form,
                       const StateSink& sink) const {
  Result<const ModelSequence*> own = OwnSequence(sequence);
  if (!own) return Fail(own.error());
  const SequenceOptions& options = (*own)->options();
  const bool expand = form.options.expanded_kv && !options.expanded_kv;
  if (form.length != sequence.length() || form.rewindable != (*own)->kept_rewindable() ||
      form.options.precision != options.precision ||
      (options.expanded_kv && !form.options.expanded_kv)) {
    return Fail(ErrorCode::kInvalidArgument, "a sequence is not in the form that is to be saved",
                "save it in its own form");
  }
  Result<std::vector<StateSection>> sections = Sections(form);
  if (!sections) return Fail(sections.error());
  const SpineWeights* weights = Weights(options.precision);
  if (expand && weights == nullptr) return CheckPrepared(options.precision);
  try {
    std::vector<std::byte> bytes;
    for (const StateSection& section : *sections) {
      bytes.resize(section.bytes());
      if (expand && IsExpanded(section.array)) {
        ExpandState(*weights, **own, section, bytes);
      } else {
        (*own)->ReadState(section, bytes);
      }
      if (Status taken = sink(section, bytes); !taken) return taken;
    }
  } catch (const std::bad_alloc&) {
    return Fail(NoRoom());
  }
  return {};
}

Result<std::unique_ptr<Sequence>> MkimModel::Restore(const StateKey& key,
                                                     const StateSource& source) const {
  Result<std::vector<StateSection>> sections = Sections(key);
  if (!sections) return Fail(sections.error());
  Result<std::unique_ptr<Sequence>> made = NewSequence(key.options);
  if (!made) return made;
  auto& sequence = static_cast<ModelSequence&>(**made);
  const size_t limit = sequence.options().max_tokens;
  if (key.length > limit) {
    return Fail(ErrorCode::kContextOverflow,
                "a state of " + std::to_string(key.length) + " tokens exceeds the limit of " +
                    std::to_string(limit),
                "raise the context limit");
  }
  try {
    if (Status grown = sequence.Grow(key); !grown) return Fail(grown.error());
    std::vector<std::byte> bytes;
    for (const StateSection& section : *sections) {
      bytes.resize(section.bytes());
      if (Status given = source(section, bytes); !given) return Fail(given.error());
      if (sequence.WriteState(section, bytes)) continue;
      return Fail(ErrorCode::kCorrupt, SectionName(section) + " holds values that no state has",
                  "save the state again");
    }
  } catch (const std::bad_alloc&) {
    return Fail(NoRoom());
  }
  return made;
}

}  // namespace mk
