// A random model of either architecture whose dimensions fit no vector, in a directory of its own.

#pragma once

#include <memory>
#include <string>

#include "engine/model/model.h"
#include "tests/reference/random_dsv4.h"
#include "tests/reference/random_k3.h"
#include "tests/unit/base/temp_directory.h"
#include "tests/unit/model/run_model.h"

namespace mk::test {

enum class Kind { kK3, kDsv4 };

class RandomModel {
 public:
  explicit RandomModel(Kind kind, Precision precision = Precision::kExact, uint64_t seed = 5) {
    if (kind == Kind::kK3) {
      reference::WriteRandomK3(path(), reference::AwkwardConfig(), reference::ExpertKind::kMixed,
                               static_cast<uint32_t>(seed));
    } else {
      reference::WriteRandomDsv4(path(), reference::AwkwardDsv4Config(), seed);
    }
    model_ = Load(path(), precision);
  }

  std::string path() const { return directory_.Path("model.bin"); }
  const Model& operator*() const { return *model_; }
  const Model* operator->() const { return model_.get(); }

 private:
  TempDirectory directory_;
  std::shared_ptr<const Model> model_;
};

}  // namespace mk::test
