#include "daemon/run_looks.h"

namespace mk::daemon {

RunLooks::RunLooks(const LoadedModel& loaded, Precision precision, const protocol::RunArgs& args,
                   ForwardObserver* capture)
    : tells_experts_(args.want_experts) {
  if (capture != nullptr) observers_.Add(capture);
  if (RunLens::Wanted(args)) {
    lens_.emplace(loaded.model, loaded.tokenizer, precision, args);
    observers_.Add(&*lens_);
  }
  if (tells_experts_ || loaded.experts) {
    experts_.emplace(loaded.model->info(), loaded.experts);
    observers_.Add(&*experts_);
  }
}

void RunLooks::Begin(const RunLens::Pass& pass) {
  if (lens_) lens_->Begin(pass);
  if (experts_) experts_->Begin();
}

Status RunLooks::Examine(Executor& executor, size_t end, size_t prompt_tokens,
                         const RunLens::TokenAt& token_at, std::vector<protocol::Body>& messages) {
  if (experts_) experts_->Keep(end);
  if (!lens_ || !lens_->wanted()) return {};
  Status done = lens_->Examine(executor, end, prompt_tokens, token_at, messages);
  // What nobody looks at any more costs nothing.
  if (!lens_->wanted()) observers_.Remove(&*lens_);
  return done;
}

void RunLooks::AddTo(protocol::RunDone& done) const {
  if (tells_experts_) done.experts = experts_->Tally();
}

void RunLooks::Stop() {
  observers_ = {};
  if (experts_) observers_.Add(&*experts_);
  lens_.reset();
}

}  // namespace mk::daemon
