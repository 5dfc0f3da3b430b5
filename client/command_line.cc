#include "client/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdio>

#include "cli/config_keys.h"
#include "cli/nearest.h"
#include "client/report.h"
#include "client/wrapped_help.h"

namespace mk::client {
namespace {

std::string WrongNumber(const std::string& text, uint64_t low, uint64_t high) {
  std::string range = "a whole number from " + std::to_string(low);
  if (high != UINT64_MAX) range += " to " + std::to_string(high);
  return "\"" + text + "\" is not " + range;
}

bool ParseWhole(const std::string& text, uint64_t low, uint64_t high, uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= low && value <= high;
}

// The last of "-t,--temp,--temperature".
std::string LongName(const std::string& names) {
  return names.substr(names.rfind(',') + 1);
}

bool ParseReal(const std::string& text, RealRange range, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool above = range.above_low ? value > range.low : value >= range.low;
  return error == std::errc() && end == text.data() + text.size() && above && value <= range.high;
}

}  // namespace

CLI::Validator OneOf(std::vector<std::string> names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ",") + name;
  // Completions read the names from the description.
  return CLI::Validator(
      [names = std::move(names), list](const std::string& given) -> std::string {
        if (std::find(names.begin(), names.end(), given) != names.end()) return {};
        const std::string meant = cli::DidYouMean(given, names);
        return "\"" + given + "\" is none of " + list + (meant.empty() ? "" : "; " + meant);
      },
      "{" + list + "}");
}

CommandLine::CommandLine(const Command& command)
    : name_(std::string("mk ") + command.name),
      describe_(command.describe),
      app_(command.summary, name_) {
  app_.footer(std::string("Examples:\n") + command.examples);
  app_.get_formatter()->column_width(34);
}

void CommandLine::AddNumber(const std::string& names, uint64_t& value, const std::string& doc,
                            uint64_t low, uint64_t high) {
  app_.add_option_function<std::string>(
          names,
          [&value, low, high, name = LongName(names)](const std::string& text) {
            if (!ParseWhole(text, low, high, value)) {
              throw CLI::ValidationError(name, WrongNumber(text, low, high));
            }
          },
          doc)
      ->type_name("N");
}

void CommandLine::AddNumber(const std::string& names, std::optional<uint64_t>& value,
                            const std::string& doc, uint64_t low, uint64_t high) {
  app_.add_option_function<std::string>(
          names,
          [&value, low, high, name = LongName(names)](const std::string& text) {
            if (!ParseWhole(text, low, high, value.emplace())) {
              throw CLI::ValidationError(name, WrongNumber(text, low, high));
            }
          },
          doc)
      ->type_name("N");
}

void CommandLine::AddReal(const std::string& names, double& value, const std::string& doc,
                          RealRange range) {
  app_.add_option_function<std::string>(
          names,
          [&value, range, name = LongName(names)](const std::string& text) {
            if (ParseReal(text, range, value)) return;
            std::array<char, 64> allowed;
            std::snprintf(allowed.data(), allowed.size(), "a number %s %g %s %g",
                          range.above_low ? "above" : "from", range.low,
                          range.above_low ? "and at most" : "to", range.high);
            throw CLI::ValidationError(name, "\"" + text + "\" is not " + allowed.data());
          },
          doc)
      ->type_name("X");
}

// What nobody takes: a mistyped option, or a word too many.
int CommandLine::RefuseExtras() {
  const std::string help = "`" + name_ + " --help` lists the options, with examples";
  std::vector<std::string> extras = app_.remaining();
  const auto is_option = [](const std::string& word) { return word.starts_with('-'); };
  const auto option = std::find_if(extras.begin(), extras.end(), is_option);
  if (option == extras.end()) {
    return ReportUsage("unexpected argument \"" + (extras.empty() ? "" : extras.front()) + "\"",
                       "put text with blanks in quotes; " + help);
  }
  const std::string given = option->substr(0, option->find('='));
  std::vector<std::string> names;
  for (const CLI::Option* one : app_.get_options()) {
    for (const std::string& name : one->get_lnames()) names.push_back("--" + name);
  }
  const std::string meant = given.starts_with("--") ? cli::DidYouMean(given, names) : "";
  return ReportUsage("unknown option \"" + given + "\"", meant.empty() ? help : meant + " " + help);
}

// An empty value would silently stand for the default.
std::optional<int> CommandLine::RefuseEmptyValues() {
  for (const CLI::Option* option : app_.get_options()) {
    const std::string name = option->get_name();
    const bool text = option->get_positional() && name != "MODEL";  // judged by its command
    if (text || option->count() == 0 || option->get_items_expected_max() == 0) continue;
    const std::vector<std::string> values = option->results();
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    const bool model = name == "MODEL" || name == "--model";
    return ReportUsage(name + " is given, but empty",
                       model ? "name a model, or leave it out for the default model"
                             : "give a value, or leave it out");
  }
  return std::nullopt;
}

CLI::Option* CommandLine::AddRepeated(const std::string& names, std::vector<std::string>& values,
                                      const std::string& doc) {
  // A list would take what follows, positionals too, without the last of the three.
  return app_.add_option(names, values, doc)->expected(1)->take_all()->allow_extra_args(false);
}

void CommandLine::AddAccess(AccessOptions& access, bool autostart) {
  access_ = &access;
  access.autostart = autostart;
  app_.add_option(
          "--socket", access.socket,
          "Socket of the daemon (default: MICROKIMI_SOCKET, then $XDG_RUNTIME_DIR/microkimi)")
      ->type_name("PATH");
  if (autostart) {
    app_.add_flag("--no-autostart", no_autostart_,
                  "Fail when no daemon runs instead of starting one");
  }
}

void CommandLine::AddPrecision(std::string& precision, const std::string& doc) {
  app_.add_option("--precision", precision,
                  doc + ": exact (f32), bf16, q8 (fastest), auto: the daemon's setting (default)")
      ->type_name("PRECISION")
      ->check(OneOf({"exact", "bf16", "q8", "auto"}));
}

void CommandLine::AddPriority(std::string& priority) {
  const std::string usual = priority;
  app_.add_option("--priority", priority,
                  "interactive, or background: only what others leave (default: " + usual + ")")
      ->type_name("PRIORITY")
      ->check(OneOf({protocol::kInteractive, protocol::kBackground}));
}

// Bytes of "512MiB", "8GiB"; a bare number counts MiB, as for the reference engine.
static tl::expected<uint64_t, std::string> ParseMemorySize(const std::string& size) {
  const bool bare = size.find_first_not_of("0123456789") == std::string::npos;
  const auto value =
      cli::ParseConfigValue(*cli::FindConfigKey("stream_memory"), bare ? size + "MiB" : size);
  if (!value || std::get<int64_t>(*value) <= 0) {
    return tl::unexpected("\"" + size + "\" is no size; write 512MiB or 8GiB");
  }
  return static_cast<uint64_t>(std::get<int64_t>(*value));
}

void CommandLine::AddStream(protocol::StreamWish& stream) {
  CLI::Option* const on = app_.add_flag_callback(
      "--stream", [&stream] { stream.stream = "on"; },
      "Leave the experts in the file of the model, and keep those in use in memory (default: "
      "where the model would not fit)");
  CLI::Option* const off = app_.add_flag_callback(
      "--no-stream", [&stream] { stream.stream = "off"; }, "Read all experts into memory");
  app_.add_option_function<std::string>(
          "--stream-ram",
          [&stream](const std::string& size) {
            const auto bytes = ParseMemorySize(size);
            if (!bytes) throw CLI::ValidationError("--stream-ram", bytes.error());
            stream.stream_memory = *bytes;
          },
          "Memory for streamed experts, such as 512MiB or 8GiB; a bare number counts MiB (default: "
          "three quarters of what is free)")
      ->type_name("SIZE")
      ->excludes(off);
  on->excludes(off);
}

void CommandLine::AddModel(protocol::ModelSelector& model) {
  app_.add_option("-m,--model", model.model, "Model: a path, an alias or a name (see `mk models`)")
      ->type_name("MODEL");
  app_.add_option("--vocab", model.vocab, "Vocabulary JSON (default: the one beside the model)")
      ->type_name("FILE");
  app_.add_option("--tokenizer-file", model.rank_file,
                  "Rank file of the tokenizer (default: the one beside the model)")
      ->type_name("FILE");
}

std::optional<int> CommandLine::Parse(int argc, char** argv) {
  if (describe_ != nullptr) {
    (*describe_)(app_);
    return protocol::kExitDone;
  }
  try {
    app_.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    Output output(STDOUT_FILENO);
    output.Write(HelpForOutput(app_.help()));
    return FinishOutput(output, protocol::kExitDone);
  } catch (const CLI::ExtrasError&) {
    return RefuseExtras();
  } catch (const CLI::ParseError& error) {
    return ReportUsage(error.what(), "`" + name_ + " --help` lists the options, with examples");
  }
  if (auto code = RefuseEmptyValues()) return code;
  if (access_ != nullptr && no_autostart_) access_->autostart = false;
  return std::nullopt;
}

std::string AbsolutePath(const std::string& path) {
  if (path.empty() || path[0] == '/') return path;
  if (path.starts_with("./")) return AbsolutePath(path.substr(path.find_first_not_of('/', 1)));
  char here[PATH_MAX];
  if (::getcwd(here, sizeof(here)) == nullptr) return path;
  return std::string(here) + "/" + path;
}

std::string ModelArgument(const std::string& text) {
  const bool file_here = text.ends_with(".bin") && ::access(text.c_str(), F_OK) == 0;
  if (text.find('/') != std::string::npos || file_here) return AbsolutePath(text);
  return text;
}

std::string PackArgument(const std::string& text) {
  const bool path = text.find('/') != std::string::npos || text.ends_with(".mkmem");
  return path ? AbsolutePath(text) : text;
}

void MakeAbsolute(protocol::ModelSelector& model) {
  model.model = ModelArgument(model.model);
  model.vocab = AbsolutePath(model.vocab);
  model.rank_file = AbsolutePath(model.rank_file);
}

protocol::Result<uint64_t> ParseDurationMs(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit(end, text.data() + text.size());
  double scale = 0;
  if (unit.empty() || unit == "s") scale = 1e3;
  if (unit == "ms") scale = 1;
  if (unit == "m") scale = 60e3;
  if (unit == "h") scale = 3600e3;
  const double total = value * scale;
  if (error != std::errc() || scale == 0 || !(total >= 0) || total > 1e12) {
    return protocol::Fail(
        UsageError("\"" + text + "\" is not a duration", "for example 90, 1.5s, 250ms, 10m or 2h"));
  }
  return static_cast<uint64_t>(std::llround(total));
}

}  // namespace mk::client
