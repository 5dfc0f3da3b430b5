// The work of `mk map`: prompts to runs, runs to texts.

#pragma once

#include <string>

#include "client/map_settings.h"

namespace mk::client {

class MapRuns : public MapWork {
 public:
  explicit MapRuns(const MapSettings& settings) : settings_(settings) {}

  bool IsBlank(const Record& record) const override;
  MapItem Read(uint64_t index, Record record) override;
  uint64_t Take(const MapItem& item, const protocol::Body& body) override;
  MapAnswer Render(const MapItem& item, const protocol::Body& outcome) override;

 private:
  MapAnswer RenderDone(const MapItem& item, const protocol::RunDone& done) const;

  const MapSettings& settings_;
};

}  // namespace mk::client
