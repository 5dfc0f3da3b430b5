// `mk compare`: two models on the same texts and tasks, as a job.

#include <unistd.h>

#include <cstdio>

#include "client/commands.h"
#include "client/compare_picture.h"
#include "client/detach.h"
#include "client/eval_options.h"
#include "client/eval_text.h"
#include "client/job.h"
#include "client/picture_file.h"
#include "client/report.h"

namespace mk::client {
namespace {

struct CompareSettings {
  AccessOptions access;
  protocol::CompareArgs args;
  PictureFile picture;
  bool draws = false;
  bool json = false;
  bool detach = false;
};

std::optional<int> ParseCompare(const Command& command, int argc, char** argv,
                                CompareSettings& settings) {
  protocol::CompareArgs& args = settings.args;
  uint64_t resamples = args.resamples;
  EvalOptions options;
  CommandLine line(command);
  CLI::App& app = line.app();
  std::vector<std::string> models;
  app.add_option("MODEL", models,
                 "A, which is compared with, then B, which is judged: paths, aliases or names")
      ->type_name("");
  options.Add(line);
  line.AddPrecision(args.precision, "Arithmetic of A, and of B");
  app.add_option("--precision-b", args.precision_b, "Arithmetic of B alone")
      ->type_name("PRECISION")
      ->check(OneOf({"auto", "exact", "bf16", "q8"}));
  line.AddNumber("--seed", args.seed, "Seed of the bootstrap (default: 1)");
  line.AddNumber("--resamples", resamples, "Resamples of the bootstrap (default: 10000)", 100,
                 1'000'000);
  app.add_option("--interval", args.interval,
                 "Form of its intervals: bca (default: bias-corrected and accelerated) or "
                 "percentile")
      ->type_name("FORM")
      ->check(OneOf({"bca", "percentile"}));
  settings.picture.Add(line);
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  AddDetach(line, settings.detach);
  line.AddAccess(settings.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  if (models.size() != 2) {
    return ReportUsage("compare takes two models, not " + std::to_string(models.size()),
                       "for example: mk compare story-k3 story-dsv4");
  }
  args.a.model = models[0];
  args.b.model = models[1];
  args.resamples = static_cast<uint32_t>(resamples);
  args.items = options.Take();
  if (app.count("--precision-b") == 0) args.precision_b = args.precision;
  MakeAbsolute(args.a);
  MakeAbsolute(args.b);
  settings.draws = app.count("--out") > 0;
  if (settings.draws && settings.detach) {
    return ReportUsage("--out and --detach exclude each other",
                       "the job's result is told by `mk jobs show`; draw it without --detach");
  }
  if (!settings.draws) return std::nullopt;
  if (auto good = settings.picture.Check(); !good) return ReportError(good.error());
  return std::nullopt;
}

int Show(const CompareSettings& settings, const protocol::CompareDone& done, Output& output) {
  // A picture on standard output is all that is there.
  std::string told;
  std::string svg;
  if (settings.draws) {
    svg = DrawComparison(done);
    const std::string title = NameOf(done.a) + " and " + NameOf(done.b);
    if (auto written = settings.picture.Write(svg, title, output); !written) {
      return ReportError(written.error(), settings.json);
    }
    told = settings.picture.Told(svg);
  }
  if (settings.json) {
    output.Write(JsonLine(CompareJson(done)));
  } else if (!settings.draws || !told.empty()) {
    output.Write(CompareText(done) + told);
  }
  for (const std::string& warning : done.warnings) {
    std::fputs(("mk: warning: " + warning + "\n").c_str(), stderr);
  }
  const bool degraded = done.a.degraded || done.b.degraded;
  return FinishOutput(output, degraded ? protocol::kExitDegraded : protocol::kExitDone);
}

}  // namespace

int CompareCommand(const Command& command, int argc, char** argv) {
  CompareSettings settings;
  if (auto code = ParseCompare(command, argc, argv, settings)) return *code;
  if (settings.detach) {
    protocol::JobSpec spec;
    spec.compare = settings.args;
    return StartDetached(settings.access, {spec}, settings.json);
  }
  auto session = OpenSession(settings.access);
  if (!session) return ReportError(session.error(), settings.json);
  Output output(STDOUT_FILENO);
  auto done = RunJobFor<protocol::CompareDone>(*session, settings.args, output, !settings.json);
  if (!done) return ReportError(done.error(), settings.json);
  return Show(settings, *done, output);
}

}  // namespace mk::client
