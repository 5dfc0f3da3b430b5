#include "client/route_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/atomic_write.h"
#include "client/input.h"
#include "client/unique_fd.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

constexpr size_t kMaxStoreBytes = size_t{256} << 20;

Status CannotLock(const std::string& path) {
  return Fail(protocol::ErrorCode::kIoError, "cannot lock " + path + ": " + std::strerror(errno),
              "check the folder and its permissions");
}

// Held while the descriptor is open.
protocol::Result<UniqueFd> Lock(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return Fail(CannotLock(path).error());
  while (::flock(fd.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return Fail(CannotLock(path).error());
  }
  return fd;
}

bool Exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

protocol::Result<routing::RouteStore> ReadStore(const std::string& path) {
  if (!Exists(path)) return routing::RouteStore();
  auto bytes = ReadWholeFile(path, kMaxStoreBytes);
  if (!bytes) return Fail(std::move(bytes.error()));
  auto store = routing::RouteStore::Parse(*bytes);
  if (!store) {
    store.error().message = path + ": " + store.error().message;
    store.error().hint = "it is not overwritten; name another file";
  } else if (!store->whole()) {
    return Fail(protocol::ErrorCode::kBadRequest,
                path + ": its records are damaged from number " +
                    std::to_string(store->sessions().size() + 1) + " on",
                "it is not overwritten; name another file");
  }
  return store;
}

}  // namespace

Status CheckTally(const protocol::ExpertTally& tally) {
  bool good = tally.layers <= routing::kMaxLayers && tally.experts <= routing::kMaxExperts;
  for (const protocol::ExpertCounts& layer : tally.counts) {
    good = good && layer.layer < tally.layers;
    for (const int32_t expert : layer.experts) {
      good = good && expert >= 0 && static_cast<uint32_t>(expert) < tally.experts;
    }
  }
  if (good) return {};
  return protocol::Fail(protocol::ErrorCode::kInternal,
                        "the daemon counted experts that no model has");
}

routing::CountSketch SketchOf(const protocol::ExpertTally& tally) {
  routing::CountSketch sketch;
  for (const protocol::ExpertCounts& layer : tally.counts) {
    for (size_t i = 0; i < std::min(layer.experts.size(), layer.counts.size()); ++i) {
      sketch.Add({layer.layer, static_cast<uint32_t>(layer.experts[i])}, layer.counts[i]);
    }
  }
  return sketch;
}

protocol::Result<routing::RouteStore> AppendToStore(const std::string& path,
                                                    std::vector<routing::RouteSession> sessions) {
  const auto lock = Lock(path + ".lock");
  if (!lock) return Fail(lock.error());
  auto store = ReadStore(path);
  if (!store) return store;
  for (routing::RouteSession& session : sessions) store->Append(std::move(session));
  if (Status written = WriteFileAtomically(path, store->Serialize()); !written) {
    return Fail(std::move(written.error()));
  }
  return store;
}

Status RouteFiles::Check() const {
  for (const std::string* path :
       {&settings_.sketch, &settings_.trace, &settings_.demands, &settings_.store}) {
    if (path->empty()) continue;
    if (Status good = CheckWritable(*path); !good) return good;
  }
  if (settings_.store.empty()) return {};
  const auto store = ReadStore(settings_.store);
  return store ? Status() : Fail(store.error());
}

void RouteFiles::Take(const protocol::RoutesChunk& routes) {
  if (settings_.trace.empty() && settings_.demands.empty() && settings_.store.empty()) return;
  for (const protocol::RouterPick& pick : routes.layers) {
    for (const int32_t expert : pick.experts) {
      records_.push_back({static_cast<uint32_t>(routes.position), static_cast<uint16_t>(pick.layer),
                          static_cast<uint16_t>(expert), 0, 0});
    }
  }
}

Status RouteFiles::Write(const protocol::RunDone& done) {
  if (!settings_.has_files() || !done.experts) return {};
  if (Status good = CheckTally(*done.experts); !good) return good;
  if (!settings_.sketch.empty()) {
    Status written = WriteFileAtomically(settings_.sketch, SketchOf(*done.experts).Serialize());
    if (!written) return written;
  }
  for (routing::TraceRecord& record : records_) {
    if (record.position < done.usage.prompt_tokens) record.flags = routing::kTracePrompt;
  }
  if (!settings_.trace.empty()) {
    const protocol::ExpertTally& tally = *done.experts;
    routing::RouteTrace trace{{tally.top_k, tally.layers, tally.experts, 0,
                               routing::FingerprintBytes(done.trust.fingerprint)},
                              records_};
    Status written = WriteFileAtomically(settings_.trace, SerializeTrace(trace));
    if (!written) return written;
  }
  if (settings_.demands.empty() && settings_.store.empty()) return {};
  const auto demands = routing::DemandsOf(records_);
  if (!settings_.demands.empty()) {
    Status written = WriteFileAtomically(settings_.demands, routing::SerializeDemands(demands));
    if (!written) return written;
  }
  if (settings_.store.empty()) return {};
  const auto store = AppendToStore(settings_.store, {routing::SessionOf(demands)});
  return store ? Status() : Fail(store.error());
}

}  // namespace mk::client
