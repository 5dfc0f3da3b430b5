#include "client/generation_options.h"

#include "client/report.h"

namespace mk::client {

using protocol::Fail;
using protocol::Status;

void GenerationOptions::AddChat(CommandLine& line, protocol::RunArgs& args) {
  CLI::App& app = line.app();
  app.add_flag("--raw", raw_, "Continue the prompt as plain text (this is the default)");
  app.add_flag("--chat", chat_, "Answer the prompt as a chat turn, with the model's template");
  AddTemplate(line, args, "implies --chat");
}

void GenerationOptions::AddTemplate(CommandLine& line, protocol::RunArgs& args,
                                    const std::string& implies) {
  CLI::App& app = line.app();
  const std::string note = implies.empty() ? "" : "; " + implies;
  app.add_option("--system", system_, "System message" + note);
  app.add_flag("--no-thinking", no_thinking_, "Answer without a think channel" + note);
  app.add_option("--dialect", args.dialect,
                 "Chat template: k3, nano-sft, dsv4 (default: the vocabulary's" + note + ")")
      ->check(OneOf({"k3", "nano-sft", "dsv4"}));
}

void GenerationOptions::AddMemory(CommandLine& line, protocol::RunArgs& args) {
  line.app()
      .add_option("--memory", args.memory,
                  "Go on from a memory pack: path (with a '/' or ending in .mkmem), or name; the "
                  "prompt comes on top")
      ->type_name("PACK");
}

void GenerationOptions::AddSave(CommandLine& line, protocol::RunArgs& args) {
  line.app()
      .add_option("--save", args.save,
                  "Make a memory pack of what was read and said, when that is over or Ctrl-C ends "
                  "it; replaces a pack of this name, no other file")
      ->type_name("PACK");
  line.AddNumber("--save-format", save_format_,
                 "2 (default), or 1 for the format of the reference engine, K3 only", 1, 2);
}

void GenerationOptions::AddChunks(CommandLine& line, protocol::RunArgs& args) {
  line.AddPrecision(args.precision, "Arithmetic");
  line.app().add_flag("--no-chunked-prefill", no_chunked_prefill_,
                      "Read the prompt token by token instead of in blocks of 64");
}

void GenerationOptions::AddReading(CommandLine& line, protocol::RunArgs& args) {
  CLI::App& app = line.app();
  AddChunks(line, args);
  app.add_flag(
      "--no-prefix-cache", no_prefix_cache_,
      "Read the whole prompt, even where its beginning was read before, and keep nothing of "
      "it; the answer is the same");
  app.add_option("--timeout", timeout_, "Give up after so long: 90, 1.5s, 10m")->type_name("TIME");
}

void GenerationOptions::AddSampling(CommandLine& line, protocol::RunArgs& args,
                                    const std::string& seed_doc) {
  line.AddNumber("-n,--max-new", max_new_,
                 "Tokens to generate at most (default " + std::to_string(max_new_) + ")", 0,
                 1 << 20);
  line.AddReal("-t,--temp,--temperature", args.temperature,
               "0: always the likeliest token (default); higher: more varied", {0, 100});
  line.AddReal("--top-p", args.top_p, "Sample from the likeliest tokens of this total probability",
               {0, 1, true});
  line.AddNumber("--top-k", top_k_, "Sample from so many likeliest tokens (0: all)", 0, 1 << 20);
  line.AddReal("--min-p", args.min_p,
               "Leave out tokens less likely than this part of the likeliest", {0, 1});
  line.AddNumber("--spec", spec_,
                 "Guess so many tokens ahead at most, from what the text said before; the answer "
                 "is the same, text that repeats itself comes faster",
                 0, protocol::kMaxSpec);
  line.AddNumber("--spec-rosa", spec_rosa_,
                 "The same with a suffix automaton, which knows what comes most often", 0,
                 protocol::kMaxSpec);
  line.AddNumber("--spec-shadow", spec_shadow_,
                 "Guess so many tokens ahead at most with shadows of experts that are not in "
                 "memory (`mk shadow`); the answer is the same, and experts of several tokens are "
                 "waited for together",
                 0, protocol::kMaxSpec);
  line.app().add_flag("--stream-fallback", args.stream_fallback,
                      "Take shadows for experts that are not in memory instead of waiting; the "
                      "answer is degraded");
  sampling_.Add(line, args);
  line.AddNumber("--seed", seed_, seed_doc);
  line.AddRepeated("--stop", args.stop, "Text that ends the answer; may be given several times")
      ->type_name("TEXT");
  AddReading(line, args);
}

bool GenerationOptions::chat(const protocol::RunArgs& args) const {
  return chat_ || !system_.empty() || no_thinking_ || !args.dialect.empty();
}

Status GenerationOptions::Take(protocol::RunArgs& args) const {
  if (raw_ && chat(args)) {
    return Fail(UsageError("--raw excludes --chat, --system, --no-thinking and --dialect",
                           "leave out --raw, or the others"));
  }
  if (!timeout_.empty()) {
    auto timeout = ParseDurationMs(timeout_);
    if (!timeout) return Fail(std::move(timeout.error()));
    if (*timeout == 0) return Fail(UsageError("--timeout is 0", "leave it out for no limit"));
    args.timeout_ms = *timeout;
  }
  args.raw = !chat(args);
  args.thinking = !no_thinking_;
  if (!system_.empty()) args.system = system_;
  args.max_new = static_cast<uint32_t>(max_new_);
  args.top_k = static_cast<uint32_t>(top_k_);
  args.spec = static_cast<uint32_t>(spec_);
  args.spec_rosa = static_cast<uint32_t>(spec_rosa_);
  args.spec_shadow = static_cast<uint32_t>(spec_shadow_);
  args.seed = seed_;
  args.chunked_prefill = !no_chunked_prefill_;
  args.prefix_cache = !no_prefix_cache_;
  if (save_format_ != 0 && args.save.empty()) {
    return Fail(UsageError("--save-format goes with --save", "name the pack to make"));
  }
  if (save_format_ != 0) args.save_format = static_cast<uint32_t>(save_format_);
  if (Status taken = sampling_.Take(args); !taken) return taken;
  MakeAbsolute(args.model);
  args.memory = PackArgument(args.memory);
  args.save = PackArgument(args.save);
  return {};
}

}  // namespace mk::client
