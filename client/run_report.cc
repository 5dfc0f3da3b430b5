#include "client/run_report.h"

#include <array>
#include <cstdio>
#include <string>

#include "client/printable.h"
#include "client/progress.h"

namespace mk::client {

std::string SavedText(const protocol::SavedPack& saved) {
  std::array<char, 64> took;
  std::snprintf(took.data(), took.size(), " in %.0f ms", saved.save_ms);
  return "saved " + Printable(saved.path) + ": " + std::to_string(saved.tokens) +
         (saved.tokens == 1 ? " token, " : " tokens, ") + BytesText(saved.bytes) + took.data();
}

namespace {

std::string SpeculationText(const protocol::SpeculationReport& report) {
  std::array<char, 160> text;
  const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  const uint64_t steps = report.passes + report.singles;
  const uint64_t tokens = report.accepted + steps;
  std::snprintf(text.data(), text.size(),
                "drafts: %llu of %llu tokens accepted in %llu passes, %llu single steps, %.2f "
                "tokens per pass",
                number(report.accepted), number(report.drafted), number(report.passes),
                number(report.singles),
                steps > 0 ? static_cast<double>(tokens) / static_cast<double>(steps) : 0.0);
  return text.data();
}

// "experts 93.1 % from memory, 12 MiB read, waited 0.35 s"
std::string StreamUseText(const protocol::StreamUse& use) {
  std::array<char, 128> text;
  const double share =
      use.demands > 0 ? 100.0 * static_cast<double>(use.hits) / static_cast<double>(use.demands)
                      : 100.0;
  std::snprintf(text.data(), text.size(), "experts %.1f %% from memory, %s read, waited %.2f s",
                share, BytesText(use.read_bytes).c_str(), use.stall_ms / 1e3);
  return text.data();
}

}  // namespace

std::string RunStatsText(const protocol::RunDone& done) {
  std::array<char, 512> line;
  const std::string saved = done.saved ? "; " + SavedText(*done.saved) : std::string();
  std::string cached;
  if (done.usage.cached > 0) cached = " (" + std::to_string(done.usage.cached) + " cached)";
  // A run that ended before its first token has no such time.
  std::array<char, 48> first = {};
  if (done.usage.completion_tokens > 0) {
    std::snprintf(first.data(), first.size(), "first token after %.2f s; ",
                  done.timing.ttft_ms / 1e3);
  }
  std::snprintf(line.data(), line.size(),
                "%llu tokens, %.1f tok/s; prompt %llu tokens%s in %.2f s; %s"
                "%s, seed %llu; %s%s; model %s",
                static_cast<unsigned long long>(done.usage.completion_tokens),
                done.timing.tok_per_s, static_cast<unsigned long long>(done.usage.prompt_tokens),
                cached.c_str(), done.timing.prefill_ms / 1e3, first.data(),
                done.finish_reason.c_str(), static_cast<unsigned long long>(done.options.seed),
                done.trust.degraded ? "DEGRADED, " : "", done.trust.precision.c_str(),
                done.trust.fingerprint.c_str());
  const std::string drafts =
      done.speculation ? "; " + SpeculationText(*done.speculation) : std::string();
  const std::string streamed = done.stream ? "; " + StreamUseText(*done.stream) : std::string();
  return line.data() + drafts + streamed + saved;
}

Json RunDoneJson(const protocol::RunDone& done) {
  Json json = ToJson(done);
  json.erase("rest");  // part of the text
  if (done.options.raw) json.erase("reasoning");
  return json;
}

}  // namespace mk::client
