#include "daemon/jobs/eval_kind.h"

#include <utility>

#include "daemon/eval/eval_cards.h"
#include "daemon/stream_wish.h"

namespace mk::daemon {

protocol::Result<JobPlan> EvalKind::Prepare(protocol::JobSpec& spec) const {
  protocol::EvalArgs& args = *spec.eval;
  auto ref = ResolveSelector(core_, args.model);
  if (!ref) return protocol::Fail(std::move(ref.error()));
  args.model = {ref->path, ref->vocab_path, ref->rank_path};
  args.precision = PrecisionName(ParsePrecision(args.precision).value_or(core_.config.precision));
  if (auto files = ResolveEvalFiles(args.items); !files) return protocol::Fail(files.error());
  return JobPlan{ref->path + " (" + args.precision + ")", ref->path, {"load", 0, 100, "percent"}};
}

protocol::Result<protocol::JobResult> EvalKind::Run(const protocol::JobSpec& spec,
                                                    JobContext& context) {
  const protocol::EvalArgs& args = *spec.eval;
  auto memory = ReserveForEvalData(args.items, core_.ledger);
  if (!memory) return protocol::Fail(std::move(memory.error()));
  auto data = LoadEvalData(args.items);
  if (!data) return protocol::Fail(std::move(data.error()));
  const Precision precision = ParsePrecision(args.precision).value_or(Precision::kExact);
  auto lease = engine_.Acquire({args.model.model, args.model.vocab, args.model.rank_file},
                               precision, context, {args.items.stream, args.items.stream_memory});
  if (!lease) return protocol::Fail(std::move(lease.error()));
  if (args.items.stream_fallback) {
    auto shadows = HasShadows(*lease->loaded()->model);
    if (!shadows) return protocol::Fail(std::move(shadows.error()));
  }
  const std::vector<EvalModel> models = {{std::move(*lease), precision}};
  EvalWork work(engine_, context, models, args.items);
  std::vector<std::vector<DocumentUnits>> texts;
  for (const EvalText& text : data->texts) {
    auto documents = AddText(text, models[0], {}, work);
    if (!documents) return protocol::Fail(std::move(documents.error()));
    texts.push_back(std::move(*documents));
  }
  std::vector<size_t> tasks;
  for (const EvalTask& task : data->tasks) tasks.push_back(AddTask(task, 0, work));
  if (auto ran = work.Run(); !ran) return protocol::Fail(std::move(ran.error()));

  protocol::EvalDone done;
  done.model = Describe(models[0]);
  done.chunked_prefill = args.items.chunked_prefill;
  for (size_t i = 0; i < texts.size(); ++i) {
    done.texts.push_back(CardOf(data->texts[i], texts[i], work, 0));
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    done.tasks.push_back(CardOf(data->tasks[i], tasks[i], work));
  }
  AddTrust(work, 0, done.model, done.warnings);
  protocol::JobResult result;
  result.eval = std::move(done);
  return result;
}

}  // namespace mk::daemon
