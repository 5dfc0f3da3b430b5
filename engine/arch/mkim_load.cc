// Loading: measure, refuse what does not fit, allocate, read.

#include <algorithm>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "engine/arch/mkim_model.h"
#include "engine/experts/resident_experts.h"
#include "engine/format/vq1.h"
#include "engine/kernels/vq1_matmul.h"
#include "engine/parallel/thread_pool.h"
#include "engine/shadow/shadow_experts.h"

namespace mk {
namespace {

Status Admit(uint64_t bytes, const LoadOptions& options) {
  return options.admit ? options.admit(bytes) : Status();
}

Result<std::unique_ptr<ThreadPool>> LoadingPool(const LoadOptions& options) {
  return ThreadPool::Create(static_cast<size_t>(std::max(1, options.threads)));
}

// The codebook of VQ1 experts with the room behind it that kernels want, if the file has one.
std::span<const float> LayOutCodebook(const MkimFile& file, SpineBuilder& builder) {
  builder.SetPrefix("");
  if (file.FindTensor("vq_codebook") == nullptr) return {};
  const std::span<const float> entries = builder.Table("vq_codebook", 1, kVq1CodebookSize);
  builder.TakeFloats(kVq1CodebookFloats - kVq1CodebookSize);
  return entries;
}

}  // namespace

// A spine that was read.
struct MkimModel::Planned {
  std::unique_ptr<SpineWeights> weights;
  SpineOutcome outcome;
};

// What experts will take, and where they lie if they are streamed.
struct MkimModel::ExpertPlan {
  uint64_t bytes = 0;
  std::optional<ExpertTable> table;
  StreamOptions stream;
  std::optional<ShadowFile> shadows;
  std::string shadow_error;  // why there are none though some are named
};

MkimModel::MkimModel(std::shared_ptr<const MkimFile> file, ExpertShape experts,
                     uint32_t spine_version)
    : file_(std::move(file)), expert_shape_(std::move(experts)), spine_version_(spine_version) {}

Error MkimModel::NoMemory() const {
  return {ErrorCode::kOutOfMemory, file_->path() + ": no memory to load the model",
          "end other programs or unload another model"};
}

void MkimModel::DescribeHeader() {
  const MkimConfig& config = file_->config();
  info_.architecture = std::string(ArchitectureName(config.arch));
  info_.path = file_->path();
  info_.layers = config.n_layers;
  const auto& in_layer = expert_shape_.in_layer;
  const bool moe = std::find(in_layer.begin(), in_layer.end(), true) != in_layer.end();
  info_.experts = moe ? config.n_experts : 0;
  info_.top_k = moe ? config.top_k : 0;
  info_.parameters = file_->CountParameters();
  info_.file_bytes = file_->identity().size;
  info_.bos = config.specials.bos;
  info_.end_of_msg = config.specials.end_of_msg;
  Describe(info_);
}

Status MkimModel::DescribeFile() {
  Result<std::string> fingerprint = file_->Fingerprint();
  if (!fingerprint) return Fail(fingerprint.error());
  DescribeHeader();
  info_.fingerprint = std::move(*fingerprint);
  return {};
}

Result<uint64_t> MkimModel::MeasureTables() {
  SpineBuilder builder(*file_, nullptr);
  LayOutTables(builder);
  LayOutCodebook(*file_, builder);
  Result<SpinePlan> plan = builder.Finish();
  if (!plan) return Fail(plan.error());
  return plan->bytes;
}

Status MkimModel::ReadTables(size_t bytes, ThreadPool& pool, LoadProgress& progress) {
  Result<PageBuffer> memory = PageBuffer::Allocate(bytes);
  if (!memory) return Fail(memory.error());
  tables_ = std::move(*memory);
  SpineBuilder builder(*file_, tables_.data());
  LayOutTables(builder);
  codebook_ = LayOutCodebook(*file_, builder);
  Result<SpinePlan> plan = builder.Finish();
  if (!plan) return Fail(plan.error());
  if (Status read = ReadPieces(*file_, plan->pieces, pool, progress); !read) return read;
  if (!codebook_.empty()) {
    const std::span<float> tables = tables_.floats();
    CompleteVq1Codebook(tables.data() + (codebook_.data() - tables.data()));
  }
  return {};
}

Result<SpinePlan> MkimModel::MeasureSpine(Precision precision) const {
  SpineBuilder builder(*file_, nullptr);
  LayOutSpine(builder, precision);
  return builder.Finish();
}

Status MkimModel::ReadSpine(Precision precision, size_t bytes, const LoadOptions& options,
                            ThreadPool& pool, LoadProgress& progress, Planned& out) const {
  Result<PageBuffer> memory = PageBuffer::Allocate(bytes);
  if (!memory) return Fail(memory.error());
  SpineBuilder builder(*file_, memory->data());
  out.weights = LayOutSpine(builder, precision);
  Result<SpinePlan> plan = builder.Finish();
  if (!plan) return Fail(plan.error());
  out.weights->memory = std::move(*memory);
  const SpineSource source{*file_, info_.fingerprint, precision, spine_version_};
  Result<SpineOutcome> outcome =
      FillSpine(source, *plan, {out.weights->memory.data(), out.weights->memory.size()},
                options.spine_cache, pool, progress);
  if (!outcome) return Fail(outcome.error());
  out.outcome = std::move(*outcome);
  return {};
}

// `rest`: what the model takes beside its experts.
Status MkimModel::MeasureExperts(const LoadOptions& options, uint64_t rest,
                                 ExpertPlan& plan) const {
  const bool always = options.stream && options.stream_above == 0;
  if (info_.experts == 0 || !always) {
    Result<uint64_t> bytes = ResidentExperts::Measure(*file_, expert_shape_);
    if (!bytes) return Fail(bytes.error());
    plan.bytes = *bytes;
    if (info_.experts == 0 || !options.stream || rest + *bytes <= options.stream_above) return {};
  }
  Result<ExpertTable> table = ExpertTable::Create(*file_, expert_shape_);
  if (!table) return Fail(table.error());
  plan.stream = *options.stream;
  // A model can be streamed without its shadows: whoever wants them is told why there are none.
  if (!plan.stream.shadows.empty()) {
    Result<ShadowFile> shadows = ShadowExperts::Find(*file_, plan.stream.shadows);
    if (shadows) {
      plan.shadows.emplace(std::move(*shadows));
    } else {
      plan.shadow_error = shadows.error().ToString();
    }
  }
  const uint64_t tables = StreamedExperts::TableBytes(*table);
  if (plan.stream.budget == 0) {
    if (plan.shadows) rest += ShadowExperts::Measure(plan.shadows->info());
    const uint64_t room = options.stream_room > rest + tables ? options.stream_room - rest - tables
                          : options.stream_room == 0          ? std::numeric_limits<uint64_t>::max()
                                                              : 0;
    const uint64_t smallest = StreamedExperts::SmallestBudget(*table, info_.top_k);
    plan.stream.budget =
        std::clamp(room, smallest, std::max(smallest, StreamedExperts::LargestBudget(*table)));
  }
  plan.bytes = plan.stream.budget + tables;
  if (plan.shadows) plan.bytes += ShadowExperts::Measure(plan.shadows->info());
  plan.table = std::move(*table);
  return {};
}

Status MkimModel::OpenExperts(ExpertPlan plan, ThreadPool& pool, LoadProgress& progress) {
  if (!plan.table) {
    Result<std::unique_ptr<ResidentExperts>> experts =
        ResidentExperts::Load(*file_, expert_shape_, codebook_.data(), pool, progress);
    if (!experts) return Fail(experts.error());
    experts_ = std::move(*experts);
    return {};
  }
  Result<std::unique_ptr<StreamedExperts>> experts = StreamedExperts::Create(
      file_, std::move(*plan.table), info_.top_k, codebook_.data(), plan.stream);
  if (!experts) return Fail(experts.error());
  if (plan.shadows) {
    Result<std::unique_ptr<ShadowExperts>> shadows =
        ShadowExperts::Load(*plan.shadows, *file_, pool);
    if (!shadows) return Fail(shadows.error());
    (*experts)->SetShadows(std::move(*shadows));
  }
  (*experts)->SetShadowError(std::move(plan.shadow_error));
  streamed_ = experts->get();
  experts_ = std::move(*experts);
  return {};
}

Status MkimModel::LoadParts(const LoadOptions& options) {
  if (Status described = DescribeFile(); !described) return described;
  Result<uint64_t> table_bytes = MeasureTables();
  if (!table_bytes) return Fail(table_bytes.error());
  Result<SpinePlan> spine_plan = MeasureSpine(options.precision);
  if (!spine_plan) return Fail(spine_plan.error());
  ExpertPlan expert_plan;
  const uint64_t rest = *table_bytes + spine_plan->bytes;
  if (Status measured = MeasureExperts(options, rest, expert_plan); !measured) return measured;
  const uint64_t total = rest + expert_plan.bytes;
  if (Status admitted = Admit(total, options); !admitted) return admitted;

  Result<std::unique_ptr<ThreadPool>> pool = LoadingPool(options);
  if (!pool) return Fail(pool.error());
  const uint64_t left_in_file = expert_plan.table ? file_->resources().expert_bytes : 0;
  LoadProgress progress(options.progress, file_->identity().size - left_in_file, file_->path());
  if (Status read = ReadTables(*table_bytes, **pool, progress); !read) return read;
  Planned spine;
  Status read = ReadSpine(options.precision, spine_plan->bytes, options, **pool, progress, spine);
  if (!read) return read;
  Status opened = OpenExperts(std::move(expert_plan), **pool, progress);
  if (!opened) return opened;
  if (Status same = file_->Unchanged(); !same) return same;
  if (Status done = progress.Finish(); !done) return done;
  resident_bytes_ = *table_bytes;
  TakeSpine(options.precision, std::move(spine), options);
  RestoreHotSet(options.hot_set_folder);
  return {};
}

Result<std::shared_ptr<const Model>> MkimModel::Load(std::shared_ptr<MkimModel> model,
                                                     const LoadOptions& options) {
  try {
    if (Status loaded = model->LoadParts(options); !loaded) return Fail(loaded.error());
    return model;
  } catch (const std::bad_alloc&) {
    return Fail(model->NoMemory());
  }
}

void MkimModel::TakeSpine(Precision precision, Planned spine, const LoadOptions& options) const {
  const auto slot = static_cast<size_t>(precision);
  const PageBuffer& memory = spine.weights->memory;
  std::unique_ptr<SpineWriter> writer;
  if (spine.outcome.keep) {
    writer = std::make_unique<SpineWriter>(options.spine_cache, std::move(*spine.outcome.keep),
                                           std::span(memory.data(), memory.size()));
  }
  // Nothing fails from here on.
  spine_writers_[slot] = std::move(writer);
  spine_cached_[slot].store(spine.outcome.cached, std::memory_order_relaxed);
  resident_bytes_ += memory.size();
  owned_weights_[slot] = std::move(spine.weights);
  weights_[slot].store(owned_weights_[slot].get(), std::memory_order_release);
}

Status MkimModel::Prepare(Precision precision, const LoadOptions& options) const {
  const std::lock_guard lock(prepare_mutex_);
  if (prepared(precision)) return {};
  try {
    Result<SpinePlan> plan = MeasureSpine(precision);
    if (!plan) return Fail(plan.error());
    if (Status admitted = Admit(plan->bytes, options); !admitted) return admitted;
    Result<std::unique_ptr<ThreadPool>> pool = LoadingPool(options);
    if (!pool) return Fail(pool.error());
    LoadProgress progress(options.progress, plan->read_bytes, file_->path());
    Planned spine;
    Status read = ReadSpine(precision, plan->bytes, options, **pool, progress, spine);
    if (!read) return read;
    if (Status same = file_->Unchanged(); !same) return same;
    if (Status done = progress.Finish(); !done) return done;
    TakeSpine(precision, std::move(spine), options);
  } catch (const std::bad_alloc&) {
    return Fail(NoMemory());
  }
  return {};
}

}  // namespace mk
