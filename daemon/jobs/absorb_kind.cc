#include "daemon/jobs/absorb_kind.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <utility>

#include "daemon/dirs.h"
#include "daemon/errors.h"
#include "daemon/jobs/absorb_checkpoint.h"
#include "daemon/memory_text.h"
#include "daemon/run_packs.h"
#include "daemon/run_task.h"
#include "engine/base/file.h"
#include "engine/format/digest.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;
using Seconds = std::chrono::duration<double>;

// Tokens that are read by one run. After each the job may end, and what was read may be saved.
constexpr size_t kSlice = 64 * kPrefillBlock;
// Saving takes at most this part of the time, and what is lost with the daemon at most this long to
// read again, or the inverse of the part times the time of a save.
constexpr double kSavingShare = 0.05;
constexpr Seconds kSaveAfter{1};
// Files of jobs that nobody knows may belong to one that is about to be started.
constexpr auto kSweepAfter = std::chrono::hours(1);

protocol::RunArgs RunArgsOf(const protocol::AbsorbArgs& args) {
  protocol::RunArgs run;
  run.raw = true;
  run.max_new = 0;
  run.memory = args.memory;
  run.save = args.save;
  run.save_format = args.save_format;
  run.chunked_prefill = args.chunked_prefill;
  run.prefix_cache = false;
  return run;
}

std::string NewPartialPath(const std::string& folder) {
  std::random_device device;
  char name[32];
  std::snprintf(name, sizeof name, "%08x%08x.mkmem", device(), device());
  return folder + "/" + name;
}

// Removes a file that is ours, wherever the request says that it is.
void RemoveOurs(const std::string& folder, const std::string& path) {
  if (path.empty() || fs::path(path).parent_path() != folder) return;
  std::error_code error;
  fs::remove(path, error);
}

// One run of the job.
class Absorbing {
 public:
  Absorbing(const Core& core, EngineAccess& engine, const std::string& folder,
            const protocol::AbsorbArgs& args, JobContext& context)
      : core_(core),
        engine_(engine),
        folder_(folder),
        args_(args),
        context_(context),
        run_(RunArgsOf(args)) {}

  protocol::Result<protocol::AbsorbDone> Run();

 private:
  protocol::Status Acquire();
  protocol::Status ReadText();
  protocol::Status Encode(const std::string& text);
  protocol::Status Begin();
  protocol::Result<bool> GoOnFrom(const AbsorbCheckpoint& checkpoint);
  protocol::Status LoadMemory(const std::optional<AbsorbCheckpoint>& earlier);
  protocol::Result<SharedState> Load(RunPacks& packs);
  protocol::Status CheckRoom() const;
  protocol::Status ReadSlice();
  void SavePartial();
  protocol::Result<protocol::SavedPack> Save();
  const Model& model() const { return *lease_->loaded()->model; }
  size_t position() const { return state_ ? state_->tokens.size() : 0; }

  const Core& core_;
  EngineAccess& engine_;
  const std::string& folder_;
  const protocol::AbsorbArgs& args_;
  JobContext& context_;
  protocol::RunArgs run_;
  RunPacks packs_;
  Precision precision_ = Precision::kExact;
  std::optional<ModelLease> lease_;
  Reservation text_memory_;
  std::vector<int32_t> ids_;  // of the text
  size_t unknown_ = 0;
  size_t read_ = 0;  // of ids_
  SharedState state_;
  AbsorbCheckpoint checkpoint_;
  Clock::time_point saved_;  // when the last unfinished pack was
  Seconds saving_took_{0};
  std::vector<std::string> warnings_;
};

protocol::Status Absorbing::Acquire() {
  precision_ = ParsePrecision(args_.precision).value_or(Precision::kExact);
  auto lease = engine_.Acquire({args_.model.model, args_.model.vocab, args_.model.rank_file},
                               precision_, context_);
  if (!lease) return protocol::Fail(std::move(lease.error()));
  lease_ = std::move(*lease);
  auto packs = PacksOf(run_);
  if (!packs) return protocol::Fail(std::move(packs.error()));
  packs_ = std::move(*packs);
  return CheckSave(packs_, model());
}

protocol::Status Absorbing::ReadText() {
  context_.Report({"encode", 0, 0, "bytes"});
  auto file = OpenForReading(args_.text);
  if (!file) return protocol::Fail(ToProtocol(file.error()));
  // The text, its ids, and what encoding them takes.
  constexpr uint64_t kPerByte = 8;
  const uint64_t bytes = file->identity.size;
  auto memory = core_.ledger.Reserve(MemoryUse::kSequences, bytes * kPerByte);
  if (!memory) {
    return protocol::Fail(protocol::ErrorCode::kOutOfMemory,
                          "a text of " + BytesText(bytes) + " does not fit into the memory budget",
                          "read it in parts: absorb them one on top of the other with --memory");
  }
  text_memory_ = std::move(*memory);
  auto text = ReadWholeFile(args_.text, bytes);
  if (!text) return protocol::Fail(ToProtocol(text.error()));
  if (auto encoded = Encode(*text); !encoded) return encoded;
  text_memory_.Shrink(ids_.size() * sizeof(int32_t));
  return {};
}

protocol::Status Absorbing::Encode(const std::string& text) {
  const LoadedModel& loaded = *lease_->loaded();
  if (!loaded.tokenizer) {
    protocol::Error error = ToProtocol(loaded.tokenizer_error);
    error.message = "the model cannot be given text: " + error.message;
    return protocol::Fail(std::move(error));
  }
  const Tokenizer& tokenizer = *loaded.tokenizer;
  auto encoded = args_.memory.empty() ? tokenizer.EncodePrompt(text) : tokenizer.EncodeText(text);
  if (!encoded) {
    protocol::Error error = ToProtocol(encoded.error());
    error.message = args_.text + ": " + error.message;
    return protocol::Fail(std::move(error));
  }
  ids_ = std::move(encoded->ids);
  unknown_ = encoded->unknown;
  if (!text.empty() && !ids_.empty()) return {};
  return protocol::Fail(protocol::ErrorCode::kBadRequest, args_.text + " is empty",
                        "give a file with some text");
}

protocol::Result<SharedState> Absorbing::Load(RunPacks& packs) {
  auto bytes = MemoryOf(packs.memory, model());
  if (!bytes) return protocol::Fail(std::move(bytes.error()));
  auto memory = engine_.Reserve(*bytes, context_);
  if (!memory) return protocol::Fail(std::move(memory.error()));
  return LoadState(packs, lease_->loaded(), precision_, run_, std::move(*memory));
}

// The pack that the text comes on top of: the very one that an earlier run of the job had. It may
// have been replaced, by the end of this job even, of which nobody heard any more.
protocol::Status Absorbing::LoadMemory(const std::optional<AbsorbCheckpoint>& earlier) {
  if (!packs_.memory.empty()) {
    auto state = Load(packs_);
    if (!state) return protocol::Fail(std::move(state.error()));
    state_ = std::move(*state);
  }
  if (!earlier || (earlier->parents == packs_.parents && earlier->before == position())) return {};
  return protocol::Fail(protocol::ErrorCode::kIncompatiblePack,
                        packs_.memory + " has changed since the job began",
                        "look at it with `mk pack info`, and absorb the text anew if it must be");
}

// False: nothing was saved, or it is of no use. Other errors are no reason to throw it away.
protocol::Result<bool> Absorbing::GoOnFrom(const AbsorbCheckpoint& checkpoint) {
  RunPacks packs;
  packs.memory = checkpoint.pack;
  auto state = Load(packs);
  if (!state) {
    const protocol::ErrorCode code = state.error().code;
    const bool useless =
        code == protocol::ErrorCode::kPackCorrupt || code == protocol::ErrorCode::kIncompatiblePack;
    if (!useless && code != protocol::ErrorCode::kNotFound) {
      return protocol::Fail(std::move(state.error()));
    }
    if (useless) {
      warnings_.push_back("the text is read from its beginning: " + state.error().message);
    }
    return false;
  }
  const size_t length = (*state)->tokens.size();
  if (length < checkpoint.before || length - checkpoint.before > ids_.size()) return false;
  state_ = std::move(*state);
  read_ = length - checkpoint.before;
  packs_.parents = checkpoint.parents;
  return true;
}

protocol::Status Absorbing::Begin() {
  const uint64_t digest = Xxh3Of(std::as_bytes(std::span(ids_)));
  const auto earlier = DecodeAbsorbCheckpoint(context_.checkpoint());
  protocol::Result<bool> goes_on = false;
  if (earlier && earlier->digest == digest) goes_on = GoOnFrom(*earlier);
  if (!goes_on) return protocol::Fail(std::move(goes_on.error()));
  if (*goes_on) {
    checkpoint_ = *earlier;
  } else {
    if (auto loaded = LoadMemory(earlier); !loaded) return loaded;
    if (earlier) RemoveOurs(folder_, earlier->pack);
    checkpoint_ = {NewPartialPath(folder_), position(), digest, packs_.parents};
    context_.SaveCheckpoint(mk::daemon::Encode(checkpoint_), 0);
  }
  saved_ = Clock::now();
  return CheckRoom();
}

// Early, so that nobody waits for what cannot be.
protocol::Status Absorbing::CheckRoom() const {
  const size_t tokens = position() + ids_.size() - read_;
  const size_t limit = model().info().max_tokens;
  if (limit > 0 && tokens > limit) {
    return protocol::Fail(protocol::ErrorCode::kContextOverflow,
                          "the text has " + std::to_string(ids_.size()) + " tokens, and with " +
                              std::to_string(checkpoint_.before) +
                              " before them they exceed the model's limit of " +
                              std::to_string(limit),
                          "give a shorter text");
  }
  const uint64_t bytes = model().state_bytes(tokens);
  if (bytes <= core_.ledger.budget()) return {};
  return protocol::Fail(protocol::ErrorCode::kOutOfMemory,
                        "the state of " + std::to_string(tokens) + " tokens takes " +
                            BytesText(bytes) + ", the memory budget is " +
                            BytesText(core_.ledger.budget()),
                        "give a shorter text, or raise the budget");
}

// Slices end at multiples of a block, so that the bits are those of reading all at once.
protocol::Status Absorbing::ReadSlice() {
  const size_t end = (position() + kSlice) / kPrefillBlock * kPrefillBlock;
  const size_t count = std::min(end - position(), ids_.size() - read_);
  protocol::RunArgs run = run_;
  const auto first = ids_.begin() + static_cast<ptrdiff_t>(read_);
  run.ids = std::vector<int32_t>(first, first + static_cast<ptrdiff_t>(count));
  RunStart start;
  if (state_) start.bases = {state_};
  start.append = state_ != nullptr;
  start.leave_state = true;
  auto prepared = PrepareRun(lease_->loaded(), precision_, std::move(run), start);
  if (!prepared) return protocol::Fail(std::move(prepared.error()));
  const size_t before = position();
  auto left = engine_.RunBeside(std::move(*prepared), context_, [&](const RequestControl& control) {
    const uint64_t done = std::max<uint64_t>(control.prompt_done.load(), before) - before;
    context_.Report({"absorb", read_ + std::min<uint64_t>(done, count), ids_.size(), "tokens"});
  });
  if (!left) return protocol::Fail(std::move(left.error()));
  state_ = std::move(*left);
  read_ += count;
  context_.Report({"absorb", read_, ids_.size(), "tokens"});
  return {};
}

// That it cannot be saved is no reason to stop: the pack that counts may be elsewhere.
void Absorbing::SavePartial() {
  const auto begin = Clock::now();
  if (begin - saved_ < std::max(kSaveAfter, saving_took_ / kSavingShare)) return;
  RunPacks partial = packs_;
  partial.save = checkpoint_.pack;
  partial.format = PackFormat::kMkmem2;
  Status made = MakePrivateDirectory(folder_);
  auto saved = made ? SaveState(partial, model(), *state_, "absorb")
                    : protocol::Fail(ToPackError(made.error()));
  saved_ = Clock::now();
  saving_took_ = saved_ - begin;
  if (saved) return context_.SaveCheckpoint(mk::daemon::Encode(checkpoint_), read_);
  spdlog::warn("what a job has read so far is not saved: {}", saved.error().message);
}

// Packs of one name are written one after the other: on the thread for states.
protocol::Result<protocol::SavedPack> Absorbing::Save() {
  context_.Report({"save", read_, ids_.size(), "tokens"});
  protocol::Result<protocol::SavedPack> saved =
      protocol::Fail(protocol::ErrorCode::kBusy, "too many states wait to be saved",
                     "`mk jobs resume` tries again");
  engine_.OnStatesThread([&] { saved = SaveState(packs_, model(), *state_, "absorb"); });
  return saved;
}

protocol::Result<protocol::AbsorbDone> Absorbing::Run() {
  const auto began = Clock::now();
  for (const auto step : {&Absorbing::Acquire, &Absorbing::ReadText, &Absorbing::Begin}) {
    if (auto status = (this->*step)(); !status) return protocol::Fail(std::move(status.error()));
  }
  while (read_ < ids_.size()) {
    if (auto status = ReadSlice(); !status) return protocol::Fail(std::move(status.error()));
    if (read_ < ids_.size()) SavePartial();
  }
  auto saved = Save();
  if (!saved) return protocol::Fail(std::move(saved.error()));
  RemoveOurs(folder_, checkpoint_.pack);
  if (args_.spooled) RemoveOurs(folder_, args_.text);
  protocol::AbsorbDone done;
  done.saved = std::move(*saved);
  done.tokens = ids_.size();
  done.unk = unknown_;
  done.seconds = Seconds(Clock::now() - began).count();
  done.precision = PrecisionName(precision_);
  done.fingerprint = model().info().fingerprint;
  done.model_path = model().info().path;
  done.warnings = std::move(warnings_);
  return done;
}

}  // namespace

protocol::Result<JobPlan> AbsorbKind::Prepare(protocol::JobSpec& spec) const {
  protocol::AbsorbArgs& args = *spec.absorb;
  auto ref = ResolveSelector(core_, args.model);
  if (!ref) return protocol::Fail(std::move(ref.error()));
  args.model = {ref->path, ref->vocab_path, ref->rank_path};
  args.precision = PrecisionName(ParsePrecision(args.precision).value_or(core_.config.precision));
  auto packs = PacksOf(RunArgsOf(args));
  if (!packs) return protocol::Fail(std::move(packs.error()));
  args.memory = packs->memory;
  args.save = packs->save;
  auto text = OpenForReading(args.text);
  if (!text) return protocol::Fail(ToProtocol(text.error()));
  std::string what = (args.spooled ? "standard input" : args.text) + " into " + args.save;
  return JobPlan{std::move(what), ref->path, {"load", 0, 100, "percent"}};
}

protocol::Result<protocol::JobResult> AbsorbKind::Run(const protocol::JobSpec& spec,
                                                      JobContext& context) {
  auto done = Absorbing(core_, engine_, folder_, *spec.absorb, context).Run();
  if (!done) return protocol::Fail(std::move(done.error()));
  protocol::JobResult result;
  result.absorb = std::move(*done);
  return result;
}

void AbsorbKind::Forget(const protocol::JobRecord& record) const {
  if (record.spec.absorb->spooled) RemoveOurs(folder_, record.spec.absorb->text);
  if (auto checkpoint = DecodeAbsorbCheckpoint(record.checkpoint))
    RemoveOurs(folder_, checkpoint->pack);
}

void SweepAbsorbed(const std::string& folder, const std::vector<protocol::JobRecord>& records) {
  std::set<std::string> known;
  for (const protocol::JobRecord& record : records) {
    if (!record.spec.absorb || record.state == protocol::JobState::kDone) continue;
    known.insert(record.spec.absorb->text);
    if (auto checkpoint = DecodeAbsorbCheckpoint(record.checkpoint)) known.insert(checkpoint->pack);
  }
  const auto now = fs::file_time_type::clock::now();
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    const auto written = entry.last_write_time(gone);
    if (gone || now - written < kSweepAfter || known.contains(entry.path().string())) continue;
    fs::remove(entry.path(), gone);
  }
}

}  // namespace mk::daemon
