// The work of `mk score`: texts to their scores.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "client/score_settings.h"
#include "client/table.h"

namespace mk::client {

class ScoreWork : public MapWork {
 public:
  explicit ScoreWork(const ScoreSettings& settings);

  bool IsBlank(const Record& record) const override;
  MapItem Read(uint64_t index, Record record) override;
  uint64_t Take(const MapItem& item, const protocol::Body& body) override;
  void Forget(const MapItem& item) override { chunks_.erase(item.index); }
  MapAnswer Render(const MapItem& item, const protocol::Body& outcome) override;
  std::string Totals() override;

 private:
  MapAnswer RenderScore(const MapItem& item, const protocol::ScoreDone& done);
  std::string JsonOf(const MapItem& item, const protocol::ScoreDone& done,
                     const std::vector<protocol::ScoreChunk>& chunks) const;

  const ScoreSettings& settings_;
  const Painter paint_;
  const bool terminal_;
  // Of texts that are being read.
  std::map<uint64_t, std::vector<protocol::ScoreChunk>> chunks_;
  // By place, so that their sum does not depend on which text was ready first.
  std::map<uint64_t, protocol::TextScore> scores_;
};

}  // namespace mk::client
