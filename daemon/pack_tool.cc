#include "daemon/pack_tool.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "daemon/pack_names.h"
#include "daemon/pack_report.h"
#include "daemon/tool_output.h"
#include "engine/base/atomic_file.h"
#include "engine/base/file.h"
#include "engine/pack/pack_file.h"
#include "engine/pack/pack_math.h"
#include "engine/pack/pack_writer.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Arguments {
  std::string action;
  std::vector<std::string> packs;
  std::string out;
  double half_life = 0;
  double units = 1;
  std::optional<double> alpha;
  std::optional<size_t> shuffle;
  bool average = false;
  bool force = false;
  bool json = false;
};

Result<PackTarget> Target(const Arguments& arguments, const std::string& text) {
  Result<std::string> path = PlaceForPack(text);
  if (!path) return Fail(path.error());
  return PackTarget{*path, arguments.force};
}

int Print(const Arguments& arguments, const ordered_json& json, const std::string& text) {
  return PrintOut(arguments.json ? json.dump() + "\n" : text);
}

int List(const Arguments& arguments) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(PackFolder(), error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kPackSuffix))
      names.push_back(name.substr(0, name.size() - kPackSuffix.size()));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return ReportFailure(SystemError(error.value(), "list", PackFolder().string()));
  }
  std::sort(names.begin(), names.end());
  ordered_json json = {{"packs", ordered_json::array()}};
  std::string text;
  for (const std::string& name : names) {
    const Result<PackInfo> info =
        DescribePack((PackFolder() / (name + std::string(kPackSuffix))).string());
    ordered_json one = info ? ToJson(*info) : ordered_json{{"error", info.error().message}};
    one.erase("sections");
    one["name"] = name;
    json["packs"].push_back(std::move(one));
    text += name + "  " + (info ? InOneLine(*info) : info.error().message) + "\n";
  }
  if (text.empty()) text = "no packs in " + PackFolder().string() + "\n";
  return Print(arguments, json, text);
}

// Looks at every pack; the exit code is that of the first that is bad, after all were looked at.
int Look(const Arguments& arguments, bool verify) {
  ordered_json json = {{"packs", ordered_json::array()}};
  std::string text;
  std::optional<Error> first;
  for (const std::string& pack : arguments.packs) {
    Result<std::string> path = FindPack(pack);
    if (!path) return ReportFailure(path.error());
    const Result<PackInfo> info = verify ? VerifyPack(*path) : DescribePack(*path);
    ordered_json one = info ? ToJson(*info) : ordered_json{{"error", info.error().message}};
    one["path"] = *path;
    json["packs"].push_back(std::move(one));
    if (info) {
      text += verify ? *path + ": sound, " + InOneLine(*info) + "\n" : *path + "\n" + ToText(*info);
    } else if (!first) {
      first = info.error();
    } else {
      (void)ReportFailure(info.error());
    }
  }
  const int code = Print(arguments, json, text);
  return first ? ReportFailure(*first) : code;
}

int Diff(const Arguments& arguments) {
  const Result<std::string> a = FindPack(arguments.packs[0]);
  if (!a) return ReportFailure(a.error());
  const Result<std::string> b = FindPack(arguments.packs[1]);
  if (!b) return ReportFailure(b.error());
  const Result<PackDifference> difference = DiffPacks(*a, *b);
  if (!difference) return ReportFailure(difference.error());
  return Print(arguments, ToJson(*difference), ToText(*difference));
}

Result<PackInfo> Combine(const Arguments& arguments, const PackTarget& target) {
  std::vector<std::string> from;
  for (const std::string& pack : arguments.packs) {
    Result<std::string> path = FindPack(pack);
    if (!path) return Fail(path.error());
    from.push_back(std::move(*path));
  }
  if (arguments.action == "decay") {
    return DecayPack(from.at(0), arguments.half_life, arguments.units, target);
  }
  if (arguments.alpha) return BlendPacks(from.at(0), from.at(1), *arguments.alpha, target);
  return MergePacks(from, {arguments.average, arguments.shuffle}, target);
}

// A pack that was checked, to another place.
Result<PackInfo> Copy(const std::string& from, const PackTarget& target) {
  Result<PackInfo> info = VerifyPack(from);
  if (!info) return info;
  if (Status free = CheckPackTarget(target.path, target.replace); !free) return Fail(free.error());
  Result<OpenedFile> file = OpenForReading(from);
  if (!file) return Fail(file.error());
  Result<AtomicFile> copy = AtomicFile::Create(target.path, 0600);
  if (!copy) return Fail(copy.error());
  std::vector<std::byte> piece(size_t{1} << 20);
  for (uint64_t at = 0; at < info->file_bytes; at += piece.size()) {
    piece.resize(static_cast<size_t>(std::min<uint64_t>(piece.size(), info->file_bytes - at)));
    if (Status read = ReadAt(file->fd.get(), at, piece, from); !read) return Fail(read.error());
    if (Status put = copy->WriteAt(at, piece); !put) return Fail(put.error());
  }
  if (Status done = copy->Commit(); !done) return Fail(done.error());
  return VerifyPack(target.path);
}

int Make(const Arguments& arguments) {
  std::string out = arguments.out;
  if (out.empty() && arguments.action == "import") {
    out = fs::path(arguments.packs[0]).stem().string();
  }
  const Result<PackTarget> target = Target(arguments, out);
  if (!target) return ReportFailure(target.error());
  const bool copies = arguments.action == "export" || arguments.action == "import";
  const Result<std::string> from = FindPack(arguments.packs[0]);
  if (!from) return ReportFailure(from.error());
  const Result<PackInfo> made = copies ? Copy(*from, *target) : Combine(arguments, *target);
  if (!made) return ReportFailure(made.error());
  ordered_json json = ToJson(*made);
  json["path"] = target->path;
  std::string text = target->path + ": " + InOneLine(*made) + "\n";
  if (!copies) text += "rows of attention come unchanged from the first pack\n";
  return Print(arguments, json, text);
}

int Remove(const Arguments& arguments) {
  ordered_json json = {{"removed", ordered_json::array()}};
  std::string text;
  for (const std::string& pack : arguments.packs) {
    const Result<std::string> path = FindPack(pack);
    if (!path) return ReportFailure(path.error());
    if (const Result<OpenedFile> there = OpenForReading(*path); !there) {
      return ReportFailure(there.error());
    }
    // Damaged packs may go; what is no pack may not.
    if (Status is_pack = CheckPackTarget(*path, true); !is_pack) {
      return ReportFailure({ErrorCode::kInvalidArgument, *path + " is not a memory pack",
                            "mk pack removes packs only"});
    }
    std::error_code error;
    if (!fs::remove(*path, error))
      return ReportFailure(SystemError(error.value(), "remove", *path));
    json["removed"].push_back(*path);
    text += "removed " + *path + "\n";
  }
  return Print(arguments, json, text);
}

int Run(const Arguments& arguments) {
  if (arguments.action == "list") return List(arguments);
  if (arguments.action == "info") return Look(arguments, false);
  if (arguments.action == "verify") return Look(arguments, true);
  if (arguments.action == "diff") return Diff(arguments);
  if (arguments.action == "rm") return Remove(arguments);
  return Make(arguments);
}

}  // namespace

int PackTool(int argc, const char* const* argv) {
  Arguments arguments;
  CLI::App app("What `mk pack` runs", "microkimid pack");
  app.add_option("ACTION", arguments.action)
      ->required()
      ->check(CLI::IsMember(
          {"list", "info", "verify", "diff", "decay", "merge", "rm", "export", "import"}));
  app.add_option("PACK", arguments.packs)->expected(0, -1);
  app.add_option("--out", arguments.out);
  app.add_option("--half-life", arguments.half_life);
  app.add_option("--units", arguments.units);
  app.add_option("--alpha", arguments.alpha);
  app.add_option("--shuffle", arguments.shuffle);
  app.add_flag("--average", arguments.average);
  app.add_flag("--force", arguments.force);
  app.add_flag("--json", arguments.json);
  CLI11_PARSE(app, argc, argv);
  const size_t least = arguments.action == "list"                                  ? 0
                       : arguments.action == "diff" || arguments.action == "merge" ? 2
                                                                                   : 1;
  if (arguments.packs.size() < least) {
    return ReportFailure(
        {ErrorCode::kInvalidArgument, "too few packs for " + arguments.action, ""});
  }
  try {
    return Run(arguments);
  } catch (const std::exception& exception) {
    return ReportFailure({ErrorCode::kInternal, exception.what(), ""});
  }
}

}  // namespace mk::daemon
