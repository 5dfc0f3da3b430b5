#include "client/job_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

#include "client/bench_result.h"
#include "client/eval_text.h"
#include "client/progress.h"
#include "client/run_report.h"
#include "client/table.h"

namespace mk::client {
namespace {

std::string Seconds(uint64_t milliseconds_) {
  return DurationText(static_cast<double>(milliseconds_) / 1e3);
}

// Local time; "-" for a time that is not known.
std::string TimeText(uint64_t ms) {
  if (ms == 0) return "-";
  const auto seconds = static_cast<std::time_t>(ms / 1000);
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return "-";
  std::array<char, 64> text;
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local)};
}

std::string StateText(const protocol::JobStatus& job) {
  if (job.state == "queued" && job.queue > 0) return "queued " + std::to_string(job.queue);
  return job.state;
}

std::string TroubleText(const std::string& trouble) {
  return "records of jobs are not saved, they end with the daemon: " + Printable(trouble) + "\n";
}

}  // namespace

std::string VerifyText(const protocol::VerifyDone& done) {
  std::string text = done.path + ": " + (done.ok ? "sound" : "NOT SOUND") + "\n";
  text += "  " + std::to_string(done.tensors) + " tensors, " + BytesText(done.file_bytes) + ", " +
          std::to_string(done.values_checked) + " values checked\n";
  text += "  xxh3-128 " + done.xxh3_128 + "\n";
  if (!done.content_sha256.empty()) {
    text += "  content sha-256 " + done.content_sha256 +
            (done.digest_recorded && done.ok ? ", as the file says" : "") + "\n";
  }
  for (const auto& problem : done.problems) {
    text += "  " + (problem.tensor.empty() ? "file" : problem.tensor) + ": " + problem.message;
    if (problem.count > 1) text += " (" + std::to_string(problem.count) + " values)";
    text += "\n";
  }
  if (done.problems_total > done.problems.size()) {
    text +=
        "  and " + std::to_string(done.problems_total - done.problems.size()) + " more problems\n";
  }
  return text;
}

std::string AbsorbText(const protocol::AbsorbDone& done) {
  std::array<char, 96> read;
  std::snprintf(read.data(), read.size(), "read %llu tokens in %.1f s; ",
                static_cast<unsigned long long>(done.tokens), done.seconds);
  return read.data() + SavedText(done.saved) + "\n";
}

std::string BuildText(const protocol::BuildDone& done) {
  std::array<char, 64> seconds;
  std::snprintf(seconds.data(), seconds.size(), "%.1f s", done.seconds);
  std::string text = (done.written ? "wrote " : "would write ") + done.path + "\n";
  text += "  " + std::to_string(done.tensors) + " tensors, " + std::to_string(done.parameters) +
          " parameters, " + BytesText(done.file_bytes) + " (" + BytesText(done.expert_bytes) +
          " experts, " + BytesText(done.spine_bytes) + " spine)";
  return text + (done.written ? ", " + std::string(seconds.data()) : "") + "\n";
}

std::string ShadowText(const protocol::ShadowDone& done) {
  std::array<char, 160> made;
  std::snprintf(made.data(), made.size(), "  relative error %.4f, gain %.3f; %.1f s",
                done.relative_error, done.gain, done.seconds);
  std::string text = "wrote " + done.path + "\n  " + done.format + ", " +
                     std::to_string(done.layers) + " layers of " + std::to_string(done.experts) +
                     " experts, " + BytesText(done.file_bytes) + " for " +
                     BytesText(done.expert_bytes) + " of experts\n" + made.data();
  if (done.resumed_layers > 0) {
    text += ", after " + std::to_string(done.resumed_layers) + " layers that were done";
  }
  return text + "\n";
}

protocol::Error NotSound(const protocol::VerifyDone& done) {
  return {protocol::ErrorCode::kModelCorrupt,
          done.path + " is not sound: " + std::to_string(done.problems_total) +
              (done.problems_total == 1 ? " problem" : " problems"),
          "copy it again or build it anew",
          {}};
}

std::string JobProgressText(const protocol::JobStatus& job) {
  if (job.total == 0) return "-";
  const double share = static_cast<double>(job.done) / static_cast<double>(job.total);
  return std::to_string(static_cast<int>(100 * std::clamp(share, 0.0, 1.0))) + " %";
}

std::string JobEtaText(const protocol::JobStatus& job) {
  return job.eta_ms ? Seconds(*job.eta_ms) : "-";
}

std::string JobsText(const protocol::JobsDone& done) {
  std::string text = done.trouble.empty() ? "" : TroubleText(done.trouble);
  if (done.jobs.empty()) return text + "no jobs\n";
  const Painter plain(false);
  TableRow head(plain, 0);
  head.Left("ID", protocol::kJobIdBytes).Left("KIND", 7).Left("STATE", 11).Right("DONE", 5);
  text += head.Right("ETA", 11).Right("AGE", 11).Rest("WHAT").Take() + "\n";
  for (const protocol::JobStatus& job : done.jobs) {
    TableRow row(plain, 0);
    row.Left(job.id, protocol::kJobIdBytes).Left(job.kind, 7).Left(StateText(job), 11);
    row.Right(JobProgressText(job), 5).Right(JobEtaText(job), 11).Right(Seconds(job.age_ms), 11);
    text += row.Rest(job.what).Take() + "\n";
  }
  return text;
}

std::string ResultText(const protocol::JobResult& result) {
  if (result.verify) return VerifyText(*result.verify);
  if (result.build) return BuildText(*result.build);
  if (result.absorb) return AbsorbText(*result.absorb);
  if (result.shadow) return ShadowText(*result.shadow);
  if (result.eval) return EvalText({*result.eval});
  if (result.compare) return CompareText(*result.compare);
  if (result.bench) return BenchText({BenchResult{*result.bench, {}}});
  return {};
}

std::string JobText(const protocol::JobReport& report) {
  const protocol::JobStatus& job = report.job;
  std::string text = "job       " + job.id + ", " + job.kind + " of " + Printable(job.what) + "\n";
  text += "state     " + StateText(job);
  if (job.state == "running") text += ", " + job.phase;
  if (job.total > 0) text += ", " + JobProgressText(job);
  if (job.eta_ms) text += ", " + Seconds(*job.eta_ms) + " left";
  text += "\nasked by  " + Printable(job.asked_by) + (job.detached ? ", detached" : "") + "\n";
  text += "created   " + TimeText(job.created_ms) + "\n";
  text += "started   " + TimeText(job.started_ms);
  if (job.runs > 1) text += ", for the " + std::to_string(job.runs) + ". time";
  text += "\nended     " + TimeText(job.ended_ms) + "\n";
  if (!job.saved) text += "record    not on disk\n";
  if (job.error) {
    text += "error     " + Printable(job.error->message) + "\n";
    if (!job.error->hint.empty()) text += "  hint: " + Printable(job.error->hint) + "\n";
  }
  const std::string result = ResultText(report.result);
  return result.empty() ? text : text + "\n" + result;
}

}  // namespace mk::client
