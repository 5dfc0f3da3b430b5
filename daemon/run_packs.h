// The memory packs of runs: the one that a run goes on from, and the one that is made of what it
// leaves.
//
// Reading and saving take as long as the disk does: they run on the thread for states.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/ledger.h"
#include "daemon/model_registry.h"
#include "daemon/run_state.h"
#include "engine/pack/pack_format.h"

namespace mk::daemon {

// What the packs of a run are about.
struct RunPacks {
  std::string memory;  // absolute; "": none
  std::string save;
  PackFormat format = PackFormat::kMkmem2;  // of `save`
  // The state ids of what the run goes on from, as far as they are known.
  std::vector<std::string> parents;

  bool any() const { return !memory.empty() || !save.empty(); }
};

// Where the packs are that a request names. Errors: bad_request.
protocol::Result<RunPacks> PacksOf(const protocol::RunArgs& args);

// Whether a run's state can be saved, as far as that can be told before: the place takes packs, and
// the model's states fit the format.
protocol::Status CheckSave(const RunPacks& packs, const Model& model);

// Bytes that a pack's state may take in memory, from header and table alone. Errors: those of
// DescribePack.
protocol::Result<uint64_t> MemoryOf(const std::string& pack, const Model& model);

// Reads a pack for a run that `args` describe; what the pack says about how it was read is put
// there. Errors: those of LoadPack, with their own codes.
protocol::Result<SharedState> LoadState(RunPacks& packs, std::shared_ptr<const LoadedModel> loaded,
                                        Precision precision, protocol::RunArgs& args,
                                        Reservation memory);

// Saves what the run leaves, when it has come to its end or was cancelled by its client, and tells
// so in its last message. A run that failed saves nothing.
KeepState SaveWhatIsLeft(std::shared_ptr<const RunPacks> packs,
                         std::shared_ptr<const LoadedModel> loaded);

// A state as a pack. Errors: those of SavePack. `operation`: "run", "absorb".
protocol::Result<protocol::SavedPack> SaveState(const RunPacks& packs, const Model& model,
                                                const RunState& state,
                                                const std::string& operation);

}  // namespace mk::daemon
