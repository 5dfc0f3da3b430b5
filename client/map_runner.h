// Many requests over one connection: so many at once, in any number, answered in order.

#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "client/map_progress.h"
#include "client/map_writer.h"
#include "client/session.h"
#include "client/signals.h"

namespace mk::client {

struct MapEnd {
  MapCounts counts;
  bool interrupted = false;              // Ctrl-C or SIGTERM
  bool output_closed = false;            // the reader of the output has left
  std::optional<protocol::Error> fatal;  // what made going on useless
};

// Reads items while fewer than `jobs` run, so that neither a long input nor a slow item costs
// memory without bound.
class MapRunner {
 public:
  MapRunner(const MapFlow& flow, size_t jobs, MapWork& work, RecordReader& reader,
            uint64_t input_bytes, Session session, Output& output, const SignalWatch& signals);

  // Runs everything; leaves nothing behind in the daemon.
  MapEnd Run(MapProgress& progress);

 private:
  struct Running {
    MapItem item;
    bool heard = false;  // the daemon has said something about it
    uint64_t seen_seq = 0;
    uint64_t acked_seq = 0;
  };

  bool Finished() const;
  bool WantsInput() const;
  protocol::Status StartItems();
  protocol::Status StartItem(MapItem item);
  protocol::Status TakeReplies();
  protocol::Status TakeReply(const protocol::Reply& reply);
  protocol::Status TakeEnd(Running running, const protocol::Body& outcome);
  void End(const MapItem& item, const protocol::Body& outcome);
  protocol::Status KeepAlive();
  protocol::Status Ack(uint64_t id, Running& running);
  protocol::Status Wait();
  void OnSignal();
  void Stop();
  protocol::Status Step(MapProgress& progress);
  bool MayMove() const;
  bool CameTooLate(const protocol::Error& error) const;
  void TakeBack(Running running);
  void TakeAllBack();
  protocol::Status Move();

  const MapFlow& flow_;
  const size_t jobs_;
  MapWork& work_;
  size_t cap_;  // runs at once that the daemon takes at the moment
  RecordReader& reader_;
  const uint64_t input_bytes_;      // 0: not known
  std::optional<Session> session_;  // always there; another one after Move()
  Output& output_;
  const SignalWatch& signals_;
  MapWriter writer_;
  std::map<uint64_t, Running> running_;  // by request
  std::map<uint64_t, MapItem> refused_;  // the daemon was busy, or left; by index
  MapEnd end_;
  bool input_ready_ = true;
  bool stopped_ = false;  // no more items
  bool moving_ = false;   // the daemon leaves; the next one does the rest
  int moves_ = 0;         // daemons that left so far
  bool left_ = false;     // the end of what runs is not waited for
  Deadline retry_at_{};   // when a busy daemon is asked again
  Deadline next_ack_;
  Deadline give_up_ = kNever;
};

}  // namespace mk::client
