#include "daemon/speculation.h"

#include "engine/generate/generation.h"

namespace mk::daemon {

static_assert(protocol::kMaxSpec == kMaxDraft);

SpeculationOptions SpeculationOf(const protocol::RunArgs& args) {
  SpeculationOptions options;
  options.ngram = args.spec;
  options.automaton = args.spec_rosa;
  options.shadow = args.spec_shadow;
  return options;
}

uint64_t SpeculationBytes(const Model& model, const protocol::RunArgs& args, uint64_t tokens) {
  const SpeculationOptions options = SpeculationOf(args);
  if (!options.any()) return 0;
  // Guesses by shadows run on a copy of the sequence.
  const uint64_t copy = options.shadow > 0 ? model.state_bytes(tokens) : 0;
  return Generation::SpeculationBytes(options, model.info().vocab, tokens) +
         model.draft_bytes(1 + options.longest()) + copy;
}

protocol::SpeculationReport ReportOf(const SpeculationStats& stats) {
  protocol::SpeculationReport report;
  report.passes = stats.passes;
  report.singles = stats.singles;
  report.drafted = stats.drafted;
  report.accepted = stats.accepted;
  report.rejected = stats.rejected();
  report.bonus = stats.bonus;
  report.drafted_at = stats.drafted_at;
  report.accepted_at = stats.accepted_at;
  report.verify_ms = stats.verify_seconds * 1e3;
  report.rollback_ms = stats.rollback_seconds * 1e3;
  return report;
}

}  // namespace mk::daemon
