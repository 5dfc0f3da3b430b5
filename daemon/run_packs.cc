#include "daemon/run_packs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <utility>

#include "daemon/dirs.h"
#include "daemon/errors.h"
#include "daemon/pack_lineage.h"
#include "daemon/pack_names.h"
#include "daemon/run_task.h"
#include "engine/base/file.h"
#include "engine/pack/pack_file.h"
#include "engine/pack/pack_writer.h"

namespace mk::daemon {
namespace {

using nlohmann::json;

// A model without these states, or a file that is no pack, says so with its own code.
template <typename T>
protocol::Result<T> ToWire(Result<T> result) {
  if (!result) return protocol::Fail(ToPackError(result.error()));
  return std::move(*result);
}

std::string LineageOf(const RunPacks& packs, const RunState& state, const std::string& operation) {
  json lineage = {{"operation", operation}, {"parents", packs.parents}};
  PutClosing(state.closing, lineage);
  return lineage.dump();
}

// Chunks of a prompt are read one way or the other; what goes on does so as it was begun.
protocol::Status TakeReading(const StateKey& key, const std::string& path,
                             protocol::RunArgs& args) {
  if (!args.chunked_prefill && key.options.chunked_prefill) {
    return protocol::Fail(protocol::ErrorCode::kIncompatiblePack,
                          path + " was read in blocks of " + std::to_string(kPrefillBlock),
                          "go on with it the same way: leave out --no-chunked-prefill");
  }
  args.chunked_prefill = key.options.chunked_prefill;
  return {};
}

}  // namespace

protocol::Result<RunPacks> PacksOf(const protocol::RunArgs& args) {
  RunPacks packs;
  packs.format = args.save_format == 1 ? PackFormat::kMkmem1 : PackFormat::kMkmem2;
  for (const auto& [from, to] :
       {std::pair(&args.memory, &packs.memory), std::pair(&args.save, &packs.save)}) {
    if (from->empty()) continue;
    auto path = FindPack(*from);
    if (!path) return protocol::Fail(ToPackError(path.error()));
    if (path->front() != '/') {
      return protocol::Fail(protocol::ErrorCode::kBadRequest,
                            "the path of a pack is relative: " + *path,
                            "give an absolute path; the daemon does not know the client's folder");
    }
    *to = std::move(*path);
  }
  return packs;
}

protocol::Status CheckSave(const RunPacks& packs, const Model& model) {
  auto keeper = KeeperOf(model);
  if (!keeper) return protocol::Fail(ToPackError(keeper.error()));
  if (packs.format == PackFormat::kMkmem1 && model.info().architecture != "k3") {
    return protocol::Fail(
        protocol::ErrorCode::kUnsupported,
        "packs of the reference engine are for k3 models, this one is " + model.info().architecture,
        "save it in the format 2");
  }
  const auto folder = std::filesystem::path(packs.save).parent_path();
  if (folder == PackFolder()) {
    if (Status made = MakePrivateDirectory(folder); !made) {
      return protocol::Fail(ToPackError(made.error()));
    }
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return protocol::Fail(ToPackError(SystemError(errno, "save to", packs.save)));
  }
  if (Status good = CheckPackTarget(packs.save, true); !good) {
    return protocol::Fail(ToPackError(good.error()));
  }
  return {};
}

protocol::Result<uint64_t> MemoryOf(const std::string& pack, const Model& model) {
  auto info = DescribePack(pack);
  if (!info) return protocol::Fail(ToPackError(info.error()));
  // What the file holds is what the state holds, but for pages that are counted whole.
  constexpr size_t kSurelyLess = size_t{1} << 32;
  const uint64_t whole = model.state_bytes(std::min(info->key.length, kSurelyLess));
  return std::max(whole, info->file_bytes);
}

protocol::Result<SharedState> LoadState(RunPacks& packs, std::shared_ptr<const LoadedModel> loaded,
                                        Precision precision, protocol::RunArgs& args,
                                        Reservation memory) {
  const Model& model = *loaded->model;
  LoadPackOptions options;
  options.precision = precision;
  options.max_tokens = kAnyLength;
  auto pack = ToWire(LoadPack(packs.memory, model, options));
  if (!pack) return protocol::Fail(std::move(pack.error()));
  if (auto taken = TakeReading(pack->info.key, packs.memory, args); !taken) {
    return protocol::Fail(std::move(taken.error()));
  }
  auto closing = ToWire(ClosingIn(pack->contents.lineage, packs.memory, model.info().vocab));
  if (!closing) return protocol::Fail(std::move(closing.error()));
  if (!pack->info.state_id.empty()) packs.parents = {pack->info.state_id};
  RunState state;
  state.tokens = std::move(pack->contents.tokens);
  if (state.tokens.empty()) state.tokens.assign(pack->sequence->length(), kUnknownToken);
  state.logits = std::move(pack->contents.logits);
  state.closing = std::move(*closing);
  state.sequence = std::move(pack->sequence);
  return Share(std::move(state), std::move(loaded), std::move(memory));
}

protocol::Result<protocol::SavedPack> SaveState(const RunPacks& packs, const Model& model,
                                                const RunState& state,
                                                const std::string& operation) {
  const auto begin = std::chrono::steady_clock::now();
  PackContents contents;
  const auto& tokens = state.tokens;
  // All of them or none.
  if (std::find(tokens.begin(), tokens.end(), kUnknownToken) == tokens.end()) {
    contents.tokens = tokens;
  }
  contents.logits = state.logits;
  contents.lineage = LineageOf(packs, state, operation);
  auto info = ToWire(SavePack(packs.save, model, *state.sequence, contents, {packs.format, true}));
  if (!info) return protocol::Fail(std::move(info.error()));
  protocol::SavedPack saved;
  saved.path = packs.save;
  saved.format = PackFormatName(info->format);
  saved.state_id = info->state_id;
  saved.tokens = state.tokens.size();
  saved.bytes = info->file_bytes;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  saved.save_ms = took.count();
  return saved;
}

KeepState SaveWhatIsLeft(std::shared_ptr<const RunPacks> packs,
                         std::shared_ptr<const LoadedModel> loaded) {
  return [packs = std::move(packs), loaded = std::move(loaded)](
             const SharedState& state, protocol::Body& last) -> protocol::Status {
    auto* done = std::get_if<protocol::RunDone>(&last);
    if (done == nullptr) return {};
    auto saved = SaveState(*packs, *loaded->model, *state, "run");
    if (!saved) return protocol::Fail(std::move(saved.error()));
    done->saved = std::move(*saved);
    return {};
  };
}

}  // namespace mk::daemon
