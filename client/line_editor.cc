#include "client/line_editor.h"

#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "client/input_history.h"
#include "client/signals.h"
#include "client/wide_text.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Result;

// A terminal in this mode puts marks around pasted text, so that its newlines are no Enter.
constexpr const char* kMarkPastes = "\x1b[?2004h";
constexpr const char* kPastesUnmarked = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

// Widths of characters are the C library's, by locale; a terminal is taken to speak UTF-8.
void UseUtf8() {
  const bool usual = ::setlocale(LC_CTYPE, "") != nullptr;
  if (!usual || std::strcmp(::nl_langinfo(CODESET), "UTF-8") != 0) {
    ::setlocale(LC_CTYPE, "C.UTF-8");
  }
}

bool KnowsEscapes() {
  const char* term = std::getenv("TERM");
  return term != nullptr && std::strcmp(term, "dumb") != 0;
}

std::string CommonPrefix(const std::vector<std::string>& texts) {
  std::string prefix = texts.front();
  for (const std::string& text : texts) {
    const auto [end, other] = std::mismatch(prefix.begin(), prefix.end(), text.begin(), text.end());
    prefix.erase(end, prefix.end());
  }
  return prefix;
}

class Editor final : public LineEditor {
 public:
  explicit Editor(Complete complete)
      : complete_(std::move(complete)), marks_pastes_(KnowsEscapes()) {}

  ~Editor() override {
    if (history_ != nullptr) ::history_wend(history_);
    if (el_ != nullptr) ::el_end(el_);
  }

  bool Start() {
    UseUtf8();
    el_ = ::el_init("mk", stdin, stdout, stderr);
    history_ = ::history_winit();
    if (el_ == nullptr || history_ == nullptr) return false;
    HistEventW event;
    ::history_w(history_, &event, H_SETSIZE, static_cast<int>(InputHistory::kEntries));
    ::history_w(history_, &event, H_SETUNIQUE, 1);
    ::el_wset(el_, EL_CLIENTDATA, this);
    ::el_wset(el_, EL_HIST, ::history_w, history_);
    ::el_wset(el_, EL_PROMPT, &Editor::Prompt);
    ::el_wset(el_, EL_GETCFN, &Editor::ReadChar);
    ::el_wset(el_, EL_EDITOR, L"emacs");
    Bind(L"mk-paste", L"Take pasted text as it is", &Editor::Paste, L"\\e[200~");
    Bind(L"mk-complete", L"Complete a command or a file", &Editor::Tab, L"^I");
    ::el_wset(el_, EL_BIND, L"^R", L"em-inc-search-prev", static_cast<wchar_t*>(nullptr));
    ::el_source(el_, nullptr);  // what the user prefers, from ~/.editrc
    return true;
  }

  void Remember(const std::string& entry) override {
    HistEventW event;
    ::history_w(history_, &event, H_ENTER, Widen(entry).c_str());
  }

  End Read(const std::string& prompt, std::string& line) override {
    const SignalWatch signals({SIGINT, SIGTERM, SIGTSTP, SIGWINCH});
    signals_ = &signals;
    prompt_ = Widen(prompt);
    interruption_.reset();
    MarkPastes(true);
    // Before the prompt is shown: what is typed at once is edited, too.
    ::el_wset(el_, EL_PREP_TERM, 1);
    int count = 0;
    const wchar_t* text = ::el_wgets(el_, &count);
    MarkPastes(false);
    signals_ = nullptr;
    if (interruption_) {
      std::fputs("\n", stdout);
      std::fflush(stdout);
      return *interruption_;
    }
    if (text == nullptr || count <= 0) return End::kEndOfInput;
    line = Narrow({text, static_cast<size_t>(count)});
    if (line.ends_with('\n')) line.pop_back();
    return End::kLine;
  }

 private:
  using Function = unsigned char (*)(EditLine*, wint_t);

  static Editor& Of(EditLine* el) {
    void* self = nullptr;
    ::el_wget(el, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }

  static wchar_t* Prompt(EditLine* el) { return Of(el).prompt_.data(); }

  void Bind(const wchar_t* name, const wchar_t* help, Function function, const wchar_t* key) {
    ::el_wset(el_, EL_ADDFN, name, help, function);
    ::el_wset(el_, EL_BIND, key, name, static_cast<wchar_t*>(nullptr));
  }

  void MarkPastes(bool on) const {
    if (!marks_pastes_) return;
    std::fputs(on ? kMarkPastes : kPastesUnmarked, stdout);
    std::fflush(stdout);
  }

  // The next character. 0: the end; -1: interrupted.
  static int ReadChar(EditLine* el, wchar_t* out) {
    Editor& self = Of(el);
    std::string bytes;
    size_t wanted = 1;
    while (bytes.size() < wanted) {
      if (!self.WaitForInput()) return -1;
      char byte = 0;
      const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) return 0;
      bytes.push_back(byte);
      if (bytes.size() == 1) wanted = Utf8SequenceLength(static_cast<unsigned char>(byte));
    }
    *out = Widen(bytes).front();
    return 1;
  }

  // False: Ctrl-C or SIGTERM came.
  bool WaitForInput() {
    while (!interruption_) {
      std::array<pollfd, 2> ready = {{{signals_->fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}}};
      if (::poll(ready.data(), ready.size(), -1) < 0) continue;
      if (ready[0].revents != 0) {
        TakeSignal(signals_->Next());
      } else if (ready[1].revents != 0) {
        return true;
      }
    }
    return false;
  }

  void TakeSignal(int signal) {
    if (signal == SIGINT) interruption_ = End::kInterrupted;
    if (signal == SIGTERM) interruption_ = End::kTerminated;
    if (signal == SIGWINCH) ::el_resize(el_);
    if (signal == SIGTSTP) Suspend();
  }

  // The shell that goes on meanwhile finds its terminal as it was.
  void Suspend() {
    MarkPastes(false);
    ::el_wset(el_, EL_PREP_TERM, 0);
    ::raise(SIGSTOP);
    ::el_wset(el_, EL_PREP_TERM, 1);
    MarkPastes(true);
    ::el_wset(el_, EL_REFRESH);
  }

  static unsigned char Paste(EditLine* el, wint_t) {
    std::wstring text;
    wchar_t c = 0;
    while (!text.ends_with(kPasteEnd)) {
      if (::el_wgetc(el, &c) != 1) return CC_EOF;
      text.push_back(c == L'\r' ? L'\n' : c);
    }
    text.resize(text.size() - kPasteEnd.size());
    std::erase_if(text, [](wchar_t one) {
      return (one < 0x20 && one != L'\n' && one != L'\t') || one == 0x7F;
    });
    return ::el_winsertstr(el, text.c_str()) == 0 || text.empty() ? CC_REFRESH : CC_REFRESH_BEEP;
  }

  static unsigned char Tab(EditLine* el, wint_t) {
    const LineInfoW* info = ::el_wline(el);
    const std::string before =
        Narrow({info->buffer, static_cast<size_t>(info->cursor - info->buffer)});
    const std::vector<std::string> found = Of(el).complete_(before);
    if (found.empty()) return CC_REFRESH_BEEP;
    const std::string common = CommonPrefix(found);
    if (common.size() > before.size() && common.starts_with(before)) {
      ::el_winsertstr(el, Widen(common.substr(before.size())).c_str());
      return CC_REFRESH;
    }
    std::fputs("\n", stdout);
    for (const std::string& one : found) std::printf("%s\n", one.c_str());
    std::fflush(stdout);
    return CC_REDISPLAY;
  }

  const Complete complete_;
  const bool marks_pastes_;
  // Between lines, too: an answer is stopped by Ctrl-C, not the chat.
  const SignalWatch always_;
  EditLine* el_ = nullptr;
  HistoryW* history_ = nullptr;
  const SignalWatch* signals_ = nullptr;  // while a line is read
  std::wstring prompt_;
  std::optional<End> interruption_;
};

}  // namespace

Result<std::unique_ptr<LineEditor>> LineEditor::Create(Complete complete) {
  auto editor = std::make_unique<Editor>(std::move(complete));
  if (!editor->Start()) {
    return protocol::Fail(ErrorCode::kUnsupported, "the terminal cannot be used for editing",
                          "set TERM to its type, or give the text through a pipe");
  }
  return std::unique_ptr<LineEditor>(std::move(editor));
}

}  // namespace mk::client
