#include "daemon/jobs/compare_kind.h"

#include <filesystem>
#include <utility>

#include "daemon/eval/compare_cards.h"

namespace mk::daemon {
namespace {

// One run of the job.
class Comparing {
 public:
  Comparing(const Core& core, EngineAccess& engine, const protocol::CompareArgs& args,
            JobContext& context)
      : core_(core), engine_(engine), args_(args), context_(context) {}

  protocol::Result<protocol::CompareDone> Run();

 private:
  protocol::Status Acquire(const protocol::ModelSelector& model, const std::string& precision);
  protocol::Status AddTexts(EvalWork& work);
  bool Paired(const TextOfBoth& text, const EvalWork& work) const;
  protocol::CompareDone Conclude(const EvalWork& work) const;

  const Core& core_;
  EngineAccess& engine_;
  const protocol::CompareArgs& args_;
  JobContext& context_;
  Reservation memory_;  // of the data
  EvalData data_;
  std::vector<EvalModel> models_;
  std::string unlike_;  // WhyUnlike
  std::vector<TextOfBoth> texts_;
  std::vector<size_t> tasks_[2];
};

protocol::Status Comparing::Acquire(const protocol::ModelSelector& model,
                                    const std::string& precision) {
  const Precision parsed = ParsePrecision(precision).value_or(Precision::kExact);
  auto lease = engine_.Acquire({model.model, model.vocab, model.rank_file}, parsed, context_,
                               {args_.items.stream, args_.items.stream_memory});
  if (!lease) return protocol::Fail(std::move(lease.error()));
  models_.push_back({std::move(*lease), parsed});
  return {};
}

// Both have cut the text into the same tokens.
bool Comparing::Paired(const TextOfBoth& text, const EvalWork& work) const {
  for (size_t d = 0; d < text.a.size(); ++d) {
    if (text.a[d].count != text.b[d].count) return false;
    for (size_t i = 0; i < text.a[d].count; ++i) {
      if (work.units[text.a[d].first + i].item != work.units[text.b[d].first + i].item)
        return false;
    }
  }
  return true;
}

protocol::Status Comparing::AddTexts(EvalWork& work) {
  for (const EvalText& text : data_.texts) {
    TextOfBoth& both = texts_.emplace_back();
    const size_t before = work.units.size();
    for (size_t side = 0; side < 2; ++side) {
      EvalUnit unit;
      unit.model = side;
      auto documents = AddText(text, models_[side], unit, work);
      if (!documents) return protocol::Fail(std::move(documents.error()));
      (side == 0 ? both.a : both.b) = std::move(*documents);
    }
    if (unlike_.empty() && !Paired(both, work)) {
      unlike_ = "the tokenizers cut " + text.file.name + " differently";
    }
    if (!unlike_.empty()) continue;
    work.units.resize(before + (work.units.size() - before) / 2);
    for (size_t i = before; i < work.units.size(); ++i) {
      work.units[i].kind = EvalUnit::Kind::kPair;
    }
    both.b = both.a;
    both.paired = true;
  }
  return {};
}

protocol::CompareDone Comparing::Conclude(const EvalWork& work) const {
  eval::BootstrapOptions options;
  options.seed = args_.seed;
  options.resamples = args_.resamples;
  options.bca = args_.interval == "bca";
  protocol::CompareDone done;
  done.a = Describe(models_[0]);
  done.b = Describe(models_[1]);
  done.chunked_prefill = args_.items.chunked_prefill;
  done.seed = args_.seed;
  done.resamples = args_.resamples;
  done.interval = args_.interval;
  for (size_t i = 0; i < texts_.size(); ++i) {
    done.texts.push_back(CompareText(data_.texts[i], texts_[i], work, options));
  }
  for (size_t i = 0; i < data_.tasks.size(); ++i) {
    done.tasks.push_back(CompareTask(data_.tasks[i], tasks_[0][i], tasks_[1][i], work, options));
  }
  done.no_fidelity = unlike_;
  if (unlike_.empty() && !texts_.empty()) done.fidelity = FidelityOf(texts_, work, options);
  AddTrust(work, 0, done.a, done.warnings);
  AddTrust(work, 1, done.b, done.warnings);
  done.verdict = VerdictOf(done);
  return done;
}

protocol::Result<protocol::CompareDone> Comparing::Run() {
  auto memory = ReserveForEvalData(args_.items, core_.ledger);
  if (!memory) return protocol::Fail(std::move(memory.error()));
  memory_ = std::move(*memory);
  auto data = LoadEvalData(args_.items);
  if (!data) return protocol::Fail(std::move(data.error()));
  data_ = std::move(*data);
  if (auto a = Acquire(args_.a, args_.precision); !a) return protocol::Fail(std::move(a.error()));
  if (auto b = Acquire(args_.b, args_.precision_b); !b) return protocol::Fail(std::move(b.error()));
  unlike_ = WhyUnlike(models_[0], models_[1]);
  EvalWork work(engine_, context_, models_, args_.items);
  if (auto added = AddTexts(work); !added) return protocol::Fail(std::move(added.error()));
  for (size_t side = 0; side < 2; ++side) {
    for (const EvalTask& task : data_.tasks) tasks_[side].push_back(AddTask(task, side, work));
  }
  if (auto ran = work.Run(); !ran) return protocol::Fail(std::move(ran.error()));
  return Conclude(work);
}

}  // namespace

protocol::Result<JobPlan> CompareKind::Prepare(protocol::JobSpec& spec) const {
  protocol::CompareArgs& args = *spec.compare;
  for (auto* model : {&args.a, &args.b}) {
    auto ref = ResolveSelector(core_, *model);
    if (!ref) return protocol::Fail(std::move(ref.error()));
    *model = {ref->path, ref->vocab_path, ref->rank_path};
  }
  for (auto* precision : {&args.precision, &args.precision_b}) {
    *precision = PrecisionName(ParsePrecision(*precision).value_or(core_.config.precision));
  }
  if (auto files = ResolveEvalFiles(args.items); !files) return protocol::Fail(files.error());
  std::string what = args.a.model + " (" + args.precision + ") and " +
                     std::filesystem::path(args.b.model).filename().string() + " (" +
                     args.precision_b + ")";
  return JobPlan{std::move(what), args.a.model, {"load", 0, 100, "percent"}};
}

protocol::Result<protocol::JobResult> CompareKind::Run(const protocol::JobSpec& spec,
                                                       JobContext& context) {
  auto done = Comparing(core_, engine_, *spec.compare, context).Run();
  if (!done) return protocol::Fail(std::move(done.error()));
  protocol::JobResult result;
  result.compare = std::move(*done);
  return result;
}

}  // namespace mk::daemon
