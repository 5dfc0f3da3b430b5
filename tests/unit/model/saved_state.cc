#include "tests/unit/model/saved_state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mk::test {
namespace {

[[noreturn]] void Die(const Error& error) {
  std::fprintf(stderr, "%s\n", error.ToString().c_str());
  std::abort();
}

const StateKeeper& Keeper(const Model& model) {
  Result<const StateKeeper*> keeper = KeeperOf(model);
  if (!keeper) Die(keeper.error());
  return **keeper;
}

}  // namespace

SavedState SaveState(const Model& model, const Sequence& sequence) {
  SavedState state;
  Result<StateKey> key = Keeper(model).KeyOf(sequence);
  if (!key) Die(key.error());
  state.key = *key;
  Status saved = Keeper(model).Save(
      sequence, *key, [&](const StateSection& section, std::span<const std::byte> bytes) -> Status {
        state.sections.push_back(section);
        state.bytes.emplace_back(bytes.begin(), bytes.end());
        return {};
      });
  if (!saved) Die(saved.error());
  return state;
}

Result<std::unique_ptr<Sequence>> TryRestore(const Model& model, const SavedState& state) {
  size_t next = 0;
  return Keeper(model).Restore(
      state.key, [&](const StateSection& section, std::span<std::byte> out) -> Status {
        if (next >= state.sections.size() || state.sections[next] != section ||
            state.bytes[next].size() != out.size()) {
          return Fail(ErrorCode::kIncompatible, "another layout at " + SectionName(section));
        }
        if (!out.empty()) std::memcpy(out.data(), state.bytes[next].data(), out.size());
        ++next;
        return {};
      });
}

std::unique_ptr<Sequence> RestoreState(const Model& model, const SavedState& state) {
  Result<std::unique_ptr<Sequence>> sequence = TryRestore(model, state);
  if (!sequence) Die(sequence.error());
  return std::move(*sequence);
}

}  // namespace mk::test
