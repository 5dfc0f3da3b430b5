#include "tests/unit/protocol/samples.h"

namespace mk::protocol::testing {
namespace {

ModelSelector Selector() {
  return {"/models/größe.bin", "/models/vocab.json", "/models/base.tiktoken"};
}

ProcessingOptions FullProcessing() {
  ProcessingOptions processing;
  processing.logit_bias = {{0, -100}, {2147483647, 1.5}};
  processing.ban = {0, 2147483647};
  processing.dry_multiplier = 0.75;
  processing.dry_base = 2.5;
  processing.dry_allowed_length = 3;
  processing.dry_range = 77;
  processing.dry_prompt = false;
  processing.dry_breakers = {"\n", "\xC3\xA9"};
  processing.dry_compat = 0.5;
  processing.repetition_penalty = 1.25;
  processing.frequency_penalty = -0.5;
  processing.presence_penalty = 0.25;
  processing.penalty_window = 99;
  processing.penalty_prompt = true;
  processing.typical_p = 0.875;
  return processing;
}

StreamStatus SomeStream() {
  return {1,
          2,
          3,
          4,
          5,
          6,
          7,
          8,
          9,
          10,
          11,
          12,
          1.5,
          2.5,
          13,
          14,
          15,
          "aged",
          "io_uring, direct",
          {{"lookahead", {1, 2, 3, 4, 5, true}}}};
}

RunArgs FullRun() {
  RunArgs args;
  args.model = Selector();
  args.stream = {"on", 1};
  args.prompt = "Es war einmal \xF0\x9F\xA6\x8A";
  args.raw = false;
  args.system = "short";
  args.thinking = false;
  args.dialect = "k3";
  args.max_new = 17;
  args.temperature = 0.75;
  args.top_p = 0.5;
  args.top_k = 40;
  args.min_p = 0.125;
  args.spec = 24;
  args.spec_rosa = 64;
  args.spec_shadow = 8;
  args.stream_fallback = true;
  args.processing = FullProcessing();
  args.ban_text = {" no", "\n"};
  args.seed = UINT64_MAX;
  args.precision = "q8";
  args.chunked_prefill = false;
  args.prefix_cache = false;
  args.stop = {"\n\n", "END"};
  args.timeout_ms = 90000;
  args.priority = "background";
  args.logprobs = 20;
  args.want_logits = true;
  args.want_hidden = true;
  args.want_routes = true;
  args.lens = "answer";
  args.lens_top = 3;
  args.lens_layers = {0, 7};
  args.want_hidden_stats = true;
  args.want_experts = true;
  args.stats = true;
  args.window = 33;
  args.session = "story";
  args.session_undo = 2;
  return args;
}

ScoreArgs FullScore() {
  ScoreArgs args;
  args.model = Selector();
  args.texts = {{"größe", "Die ", {}, {}}, {{}, "", {{1, 2147483647}}, {0}}};
  args.plain = true;
  args.tokens = false;
  args.precision = "q8";
  args.chunked_prefill = false;
  args.stream = {"off", 3};
  args.stream_fallback = true;
  args.timeout_ms = 90000;
  args.priority = "background";
  args.window = 33;
  return args;
}

ScoreDone FullScoreDone() {
  ScoreDone done;
  done.texts = {{-1.5, 2, 1, 9, 1, 2, 1, 2.25, 0.75}, {0, 0, 1, 0, 0, 0, 0, {}, {}}};
  done.chunked_prefill = false;
  done.timing = {1, 2, 3, 4, 5, 6, 7, {}, {}};
  done.trust = {"exact", false, 0, 0, "f00d", "/m.bin", "b"};
  done.warnings = {"w"};
  return done;
}

RunArgs IdsRun() {
  RunArgs args;
  args.ids = std::vector<int32_t>{0, 1, 127, 128, 65536, 2147483647};
  args.memory = "/packs/größe.mkmem";
  args.save = "story";
  args.save_format = 1;
  args.raw = true;
  return args;
}

RunArgs MessagesRun() {
  RunArgs args;
  args.messages = {{"system", "Be brief.", "", {}},
                   {"user", "Hi", "", {}},
                   {"assistant", "Yo", "hm", {1, 2, 2147483647}},
                   {"user", "", "", {}}};
  return args;
}

AbsorbArgs FullAbsorb() {
  AbsorbArgs args;
  args.model = Selector();
  args.text = "/texts/größe.txt";
  args.spooled = true;
  args.save = "book";
  args.save_format = 1;
  args.memory = "/p.mkmem";
  args.precision = "q8";
  args.chunked_prefill = false;
  return args;
}

AbsorbDone FullAbsorbDone() {
  AbsorbDone done;
  done.saved = {"/p.mkmem", "MKMEM002", "aa", 3, 4, 5.5};
  done.tokens = 6;
  done.unk = 1;
  done.seconds = 7.5;
  done.precision = "q8";
  done.fingerprint = "f00d";
  done.model_path = "/m.bin";
  done.warnings = {"w"};
  return done;
}

ShadowDone FullShadowDone() {
  return {"/s", "/m.bin", "MKSH0002", "f00d", 2, 3, 4, 5, 6, 0.75, 1.5, 1, 7.5};
}

EvalItems FullItems() {
  EvalItems items;
  items.tasks = {"facts", "/größe.jsonl"};
  items.texts = {"/t.txt"};
  items.limit = 7;
  items.chunked_prefill = false;
  items.stream = "on";
  items.stream_memory = 5;
  items.stream_fallback = true;
  return items;
}

EvalArgs FullEval() {
  return {Selector(), FullItems(), "q8"};
}

CompareArgs FullCompare() {
  CompareArgs args{Selector(), {"other", "", ""}, FullItems(), "q8", "bf16", 9, 500, "percentile"};
  args.items.stream_fallback = false;  // not of comparisons
  return args;
}

EvaluatedModel SomeEvaluated() {
  return {"/m.bin", "k3", "f00d", "q8", 1, 2, 3, true, 4, 5};
}

TextCard SomeTextCard() {
  const Proportion share{1.5, 2, 0.75, 0.25, 1};
  return {"t", "aa", 1, 2, 3, 4, 5, 6.5, 7.5, 8.5, 9.5, share, share};
}

TaskCard SomeTaskCard() {
  const Proportion share{1.5, 2, 0.75, 0.25, 1};
  return {"t",
          "aa",
          2,
          4,
          share,
          share,
          share,
          0.25,
          {{"größe", share}},
          {{"1", share}},
          {{"i", "c", 0.5, {0, -1}, 0.5}, {"j", "", 1, {}, {}}}};
}

EvalDone FullEvalDone() {
  return {SomeEvaluated(), false, {SomeTextCard()}, {SomeTaskCard(), {}}, {"w"}};
}

CompareDone FullCompareDone() {
  const PairedDifference difference{1, 2, 1, 0.5, 1.5, "bca", 9, 1, 7, 1, 0.25, 0.1, "worse"};
  CompareDone done;
  done.a = SomeEvaluated();
  done.b = SomeEvaluated();
  done.chunked_prefill = false;
  done.seed = 1;
  done.resamples = 2;
  done.interval = "bca";
  done.texts = {{"t", "aa", SomeTextCard(), {}, difference, {{"d", 1, 2.5, 3.5}}}};
  done.tasks = {{"t", "aa", SomeTaskCard(), {}, {}}};
  done.fidelity = {3, {0.5, 0.25, 0.75}, {0.5, {}, {}}, {1, 2, 3}, 1, 2, 3, 4, {{1, 0.5}}};
  done.no_fidelity = "n";
  done.verdict = {"v"};
  done.warnings = {"w"};
  return done;
}

BuildArgs FullBuild() {
  BuildArgs args;
  args.arch = "other";
  args.preset = "tiny";
  args.out = "/tmp/out.bin";
  args.seed = 5;
  args.set = {"hidden=96", "gain=1.5"};
  args.expert_align = "64";
  args.threads = 3;
  args.dry_run = true;
  args.force = true;
  return args;
}

ModelStatus SomeModel() {
  return {"/m.bin",     "k3",        "00ff",    "loading", 0.25,       1,    2, 3,
          -1,           4,           {"exact"}, {"q8"},    "nano-sft", true, 5, {{"weights", 2}},
          {"mk 7 run"}, SomeStream()};
}

JobStatus SomeJob() {
  return {"abc123", "verify",
          "/m.bin", "running",
          "verify", 5,
          6,        "bytes",
          4,        700,
          "mk 7",   true,
          2,        3,
          4,        true,
          true,     1,
          2,        3,
          4,        JobError{"io_error", "m", "h"}};
}

SessionInfo SomeSession() {
  return {"story", "text", "/m.bin", "00ff", "q8", 1, 2, 3, 4, 5, 6, "old", true, 7};
}

StatusDone FullStatus() {
  StatusDone done;
  done.version = "1.2.3";
  done.build_id = "1.2.3+abc";
  done.pid = 77;
  done.uptime_ms = 5;
  done.socket = "/run/s.sock";
  done.log = "/state/log";
  done.journal_unit = "microkimid.service";
  done.state_directory = "/state";
  done.stopping = true;
  done.threads = 4;
  done.max_batch = 8;
  done.connections = 2;
  done.precision = "bf16";
  done.memory = {{"budget", UINT64_MAX}, {"used", 0}};
  done.counters = {{"requests", 12}};
  done.models = {SomeModel()};
  done.requests = {{"mk 7", 3, "run", "/m.bin", "decode", 5, 6, 7, 1.5, 8, 9, "background"}};
  done.latency = {{"step", 5, 1.5, 1.25, 2.5, 9.5}};
  done.jobs = {SomeJob()};
  done.jobs_trouble = "disk full";
  return done;
}

ExpertTally SomeTally() {
  return {9, 4, 48, 2, {{1, {0, 47}, {17, 1}}, {3, {5}, {18}}}};
}

RunDone FullRunDone() {
  RunDone done;
  done.finish_reason = "stop";
  done.text = "answer";
  done.reasoning = "thought";
  done.rest = "r";
  done.prompt_ids = {4, 5};
  done.ids = {6};
  done.usage = {2, 1, 1, 2};
  done.timing = {1, 2, 3, 4, 5, 6, 7, 8.5, 9.5};
  done.options = {true, false, "k3",       1,       2.5,   0.5,   3, 0.25,
                  24,   64,    UINT64_MAX, "exact", false, {"x"}, 9, FullProcessing()};
  done.trust = {"exact", true, 1, 2, "f00d", "/m.bin", "b"};
  done.warnings = {"w"};
  done.session = SessionStep{"story", 1, 2, true, true, 3, 4.5, "ab"};
  done.prefix = "live";
  done.speculation = SpeculationReport{1, 2, 9, 5, 4, 1, {3, 3, 3}, {3, 2, 0}, 6.5, 0.25};
  done.stream = StreamUse{1, 2, 3, 4, 5.5};
  done.saved = SavedPack{"/p.mkmem", "MKMEM002", "aa", 3, 4, 5.5};
  done.experts = SomeTally();
  return done;
}

VerifyDone FullVerify() {
  VerifyDone done;
  done.path = "/m.bin";
  done.ok = true;
  done.file_bytes = 1;
  done.tensors = 2;
  done.values_checked = 3;
  done.xxh3_128 = "aa";
  done.content_sha256 = "bb";
  done.digest_recorded = true;
  done.problems_total = 4;
  done.problems = {{"t", "NaN at 7", 5}};
  done.warnings = {"w"};
  return done;
}

BenchDone FullBench() {
  BenchDone done;
  done.model_path = "/m.bin";
  done.architecture = "k3";
  done.fingerprint = "f00d";
  done.vocab = 8200;
  done.parameters = 1;
  done.precision = "q8";
  done.memory_bytes = 2;
  done.processor = "P";
  done.processors = 3;
  done.threads = 4;
  done.target = "AVX2";
  done.date = "2026-01-01T00:00:00Z";
  done.build_id = "b";
  done.quick = true;
  done.seconds = 5.5;
  done.ceilings = {{1, 2.5, 3.5, 4.5, 5.5}};
  done.roof = {1, 2, 3, 4, 5, 6, 7, 8.5, 9.5, 10.5, 11.5};
  done.points = {{"decode", 128, 1, 9, 1.5, 1.25, 2.5, 1.5, 666.5, 2.5, 3.5, 900.5, "reads", 0.75}};
  return done;
}

MetricsDone FullMetrics() {
  MetricSample wait{{{"op", "run"}, {"model", "/größe \"1\".bin"}}, 2.5, 3, {}};
  wait.buckets = {{0, 0.5, 1}, {4, std::nullopt, 2}};
  return {"# HELP a b\na 1\n", {{"wait_seconds", "histogram", "seconds", "how long", {wait}}}};
}

}  // namespace

std::vector<Request> SampleRequests() {
  const std::vector<Args> all = {
      HelloArgs{kProtocolMin, kProtocolMax, "build", "test", 9},
      PingArgs{},
      StatusArgs{},
      ModelsArgs{},
      LoadArgs{Selector(), -1, "bf16", true, {"off", 2}},
      UnloadArgs{"name"},
      FullRun(),
      CancelArgs{12},
      AckArgs{12, 1u << 20},
      StopArgs{1500},
      TokenizeArgs{Selector(), "text", true, false, "sys", false, "nano-sft"},
      DetokenizeArgs{Selector(), {1, 2, 3}},
      VerifyArgs{"/m.bin"},
      FullBuild(),
      BenchArgs{Selector(), "q8", true, 3},
      MetricsArgs{"families"},
      JobsArgs{},
      JobStartArgs{{VerifyArgs{"/m.bin"}, {}, {}}},
      JobAttachArgs{"abc123"},
      JobShowArgs{"abc123"},
      JobCancelArgs{"abc123"},
      JobResumeArgs{"abc123"},
      JobRemoveArgs{{"abc123", "q2"}, false},
      PckInfoArgs{"story"},
      PckCleanArgs{"/m.bin"},
      FullScore(),
      ExpertStatsArgs{"story", true},
      JobStartArgs{{{}, FullBuild(), {}}},
      JobStartArgs{{{}, {}, BenchArgs{Selector(), "q8", true, 3}}},
      JobRemoveArgs{{}, true},
      SessionsArgs{},
      SessionNewArgs{"story", Selector(), "q8", "s"},
      SessionShowArgs{"story"},
      SessionForkArgs{"story", "other", 2},
      SessionUndoArgs{"story", 3},
      SessionRenameArgs{"story", "other"},
      SessionRemoveArgs{{"story", "other"}},
      SessionSaveArgs{"story", "/p.mkmem", true},
      SessionRestoreArgs{"story", "pack", Selector()},
      SessionDiffArgs{"story", "other"},
      FullAbsorb(),
      JobStartArgs{{{}, {}, {}, FullAbsorb()}},
      ShadowArgs{"/m.bin", "/größe.shadows", 1, 1, 3},
      JobStartArgs{{{}, {}, {}, {}, ShadowArgs{"/m.bin", "/s", 2, 2, 3}}},
      FullEval(),
      FullCompare(),
      JobStartArgs{{{}, {}, {}, {}, {}, FullEval(), {}}},
      JobStartArgs{{{}, {}, {}, {}, {}, {}, FullCompare()}},
      IdsRun(),
      MessagesRun(),
      LoadArgs{},
      TokenizeArgs{{}, "", false, true, {}, true, ""},
  };
  std::vector<Request> requests;
  uint64_t id = UINT64_MAX;
  for (const Args& args : all) requests.push_back({kProtocolMax, id--, args});
  return requests;
}

std::vector<SampleReply> SampleReplies() {
  const std::vector<std::pair<Body, Op>> all = {
      {Accepted{3}, Op::kRun},
      {Progress{"prefill", 64, 4000, "tokens"}, Op::kRun},
      {TokenChunk{7, 42, "\xC3\xA9", "answer", -0.5, {{{42, "\xC3\xA9", -0.5}, {1, "", -1.5}}}},
       Op::kRun},
      {TokenChunk{1, 0, "", "", std::nullopt, std::nullopt}, Op::kRun},
      {TensorChunk{"logits", 9, 8, 4, std::string("\x00\xFF\x80\x7F", 4)}, Op::kRun},
      {TensorChunk{"hidden", 9, 4, 0, std::string("\x01\x02\x03\x04", 4)}, Op::kRun},
      {RoutesChunk{5,
                   {{1, {3, 2}, {0.75, 0.25}}, {2, {0}, {1.0}}},
                   {{2, {0, 7}, {0.5, -1.0}}, {4, {1}, {}}},
                   {{2, 1}}},
       Op::kRun},
      {Error{ErrorCode::kContextOverflow, "too long", "shorten", {{"limit", 9}, {"what", "x"}}},
       Op::kRun},
      {Error{ErrorCode::kInternal, "bare", "", {}}, Op::kPing},
      {HelloDone{1, 1, 1, "0.1.0", "b", 5}, Op::kHello},
      {PingDone{5, 6}, Op::kPing},
      {FullStatus(), Op::kStatus},
      {ModelsDone{{{"n", "/p", "alias", true, true, 1, "k3", "e", {"q8"}}}}, Op::kModels},
      {LoadDone{SomeModel(), 7, true, {"w"}, "q8", true}, Op::kLoad},
      {UnloadDone{2}, Op::kUnload},
      {FullRunDone(), Op::kRun},
      {CancelDone{true}, Op::kCancel},
      {StopDone{5, true}, Op::kStop},
      {TokenizeDone{{1, 2}, {"a", "b"}, 1}, Op::kTokenize},
      {DetokenizeDone{"text"}, Op::kDetokenize},
      {FullVerify(), Op::kVerify},
      {BuildDone{"/o.bin", true, 1, 2, 3, 4, 5, 6.5}, Op::kBuild},
      {FullBench(), Op::kBench},
      {FullMetrics(), Op::kMetrics},
      {JobsDone{{SomeJob()}, "disk full"}, Op::kJobs},
      {JobStartDone{{SomeJob(), {}}}, Op::kJobStart},
      {JobAttachDone{{SomeJob(), {FullVerify(), {}, {}}}}, Op::kJobAttach},
      {JobShowDone{{SomeJob(), {{}, BuildDone{"/o.bin", true, 1, 2, 3, 4, 5, 6.5}, {}}}},
       Op::kJobShow},
      {JobCancelDone{{SomeJob(), {}}}, Op::kJobCancel},
      {JobResumeDone{{SomeJob(), {{}, {}, FullBench()}}}, Op::kJobResume},
      {JobRemoveDone{3}, Op::kJobRemove},
      {SessionsDone{{SomeSession()}, {"a is damaged"}}, Op::kSessions},
      {SessionNewDone{SomeSession()}, Op::kSessionNew},
      {SessionShowDone{SomeSession(),
                       "be brief",
                       "k3",
                       false,
                       {{"Hi", "Hello", "hm", "stop", 3, 9, std::string(64, 'a'), 7}}},
       Op::kSessionShow},
      {SessionForkDone{SomeSession()}, Op::kSessionFork},
      {SessionUndoDone{SomeSession(), 2}, Op::kSessionUndo},
      {SessionRenameDone{SomeSession()}, Op::kSessionRename},
      {SessionRemoveDone{2}, Op::kSessionRemove},
      {SessionSaveDone{"/p.mkmem", "ab", 3, 4}, Op::kSessionSave},
      {SessionRestoreDone{SomeSession()}, Op::kSessionRestore},
      {SessionDiffDone{
           1, 2, 3, 4, 5, 6, "a", "b", true, "no state", true, {{"kda_matrix", 1, 2, 3, 0.5}}, 7},
       Op::kSessionDiff},
      {FullAbsorbDone(), Op::kAbsorb},
      {FullEvalDone(), Op::kEval},
      {FullCompareDone(), Op::kCompare},
      {JobShowDone{{SomeJob(), {{}, {}, {}, {}, {}, FullEvalDone(), FullCompareDone()}}},
       Op::kJobShow},
      {JobShowDone{{SomeJob(), {{}, {}, {}, FullAbsorbDone()}}}, Op::kJobShow},
      {FullShadowDone(), Op::kShadow},
      {JobShowDone{{SomeJob(), {{}, {}, {}, {}, FullShadowDone()}}}, Op::kJobShow},
      {PckInfoDone{{{"/m.bin",
                     "0123456789abcdef",
                     true,
                     1,
                     2,
                     3,
                     1,
                     {{320, "q8", true, true, 9, 5, 7, 1.5}}}},
                   "/state/prefix",
                   "disk full",
                   {{"memory_limit", 10}}},
       Op::kPckInfo},
      {PckCleanDone{1, 2, 3, 4}, Op::kPckClean},
      {ScoreChunk{1, 64, {7, 8}, {"a", "\xC3\xA9"}, {-0.5, -2.25}, {1, 9}}, Op::kScore},
      {FullScoreDone(), Op::kScore},
      {LensChunk{5,
                 42,
                 " fox",
                 7,
                 3,
                 "<|end|>",
                 {{0, "KDA", {3, 1}, {"a", "\xC3\xA9"}, {0.5, 0.25}, 1.5, 0, 0.5},
                  {1, "MLA", {2}, {}, {1.0}, 0, {}, {}}}},
       Op::kRun},
      {LensChunk{0, 1, "", {}, {}, "", {}}, Op::kRun},
      {HiddenStatsChunk{5, {{0, "KDA", 0.5}, {1, "MLA", 2.5}}, 1.5, -0.25, 3.5}, Op::kRun},
      {ExpertStatsDone{true, {{"/m.bin", "f00d", SomeTally()}}}, Op::kExpertStats},
  };
  std::vector<SampleReply> replies;
  uint64_t seq = 0;
  for (const auto& [body, op] : all) replies.push_back({{1000 + seq, seq, body}, op}), ++seq;
  return replies;
}

}  // namespace mk::protocol::testing
