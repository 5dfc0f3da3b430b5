#include "client/commands.h"

#include "client/pack_command.h"

#include <array>

namespace mk::client {
namespace {

constexpr std::array kCommands = {
    Command{"run", "Read a prompt and generate",
            "  mk run \"Once upon a time\"\n"
            "  echo \"One day\" | mk run -n 100 --temp 0.8 --seed 7\n"
            "  mk run --chat \"Why is the sky blue?\"\n"
            "  mk run --json -f prompt.txt | jq .usage\n"
            "  mk run --precision exact --seed 7 --temp 0.8 \"One day\"\n"
            "  mk run --ids 1,2,3 --dump-logits logits.f32 --json --routes\n"
            "  mk run \"Once upon a time\" --save story && mk run \"\" --memory story\n"
            "  mk run --logit-lens \"Once upon a time\"\n"
            "  mk run --session story \"Once upon a time\" && mk run --session story --continue",
            RunCommand},
    Command{"prefill", "Read a text into a memory pack; runs go on from there",
            "  mk prefill -f rules.txt --save rules\n"
            "  mk run \"The first rule is\" --memory rules\n"
            "  mk prefill -m ./chat.bin --chat \"Why is the sky blue?\" --save sky.mkmem\n"
            "  date | mk prefill - --memory rules --save today --json | jq .saved",
            PrefillCommand},
    Command{"absorb", "Read a text of any length into a memory pack, in the background",
            "  mk absorb book.txt --save book\n"
            "  mk absorb more.txt --memory book --save book --detach\n"
            "  zcat notes.gz | mk absorb - --save notes.mkmem --json | jq .tokens\n"
            "  mk run \"And so\" --memory book",
            AbsorbCommand},
    Command{"chat", "Talk with a model, at a terminal or line by line from a pipe",
            "  mk chat\n"
            "  mk chat --system \"Answer in one sentence.\" --temp 0.7 --save talk.json\n"
            "  mk chat --load talk.json --save talk.json --prompt \"And then?\"\n"
            "  mk chat --session work\n"
            "  printf 'Hello\\nWho are you?\\n' | mk chat --json | jq -r .text",
            ChatCommand},
    Command{"map", "Run many prompts, so many at once, answers in order",
            "  mk map -n 40 prompts.txt > answers.txt\n"
            "  mk map --temp 0.8 --seed 1 --json prompts.txt | jq -r .text\n"
            "  echo '{\"id\": 7, \"prompt\": \"One day\", \"max_new\": 9}' | mk map --jsonl\n"
            "  printf 'two\\nlines\\0another\\0' | mk map -0 | tr '\\0' '\\n'",
            MapCommand},
    Command{"score", "How likely given texts are, token by token",
            "  mk score \"Once upon a time\"\n"
            "  mk score --tokens \"The sun is hot.\"\n"
            "  mk score --context \"The dog was\" \" happy.\" \" seven.\"\n"
            "  mk score --lines -f lines.txt\n"
            "  mk score -f book.txt --json | jq .bits_per_byte",
            ScoreCommand},
    Command{"ping", "Is the daemon there",
            "  mk ping\n"
            "  mk ping >/dev/null && echo it runs",
            PingCommand},
    Command{"status", "What the daemon does and holds",
            "  mk status\n"
            "  mk status --json | jq .memory",
            StatusCommand},
    Command{"ps", "The loaded models: memory, who holds them, how long they stay",
            "  mk ps\n"
            "  mk ps --json | jq -r '.models[] | select(.pinned).path'",
            PsCommand},
    Command{"top", "Watch the daemon at work: streams, queue, models, memory, times",
            "  mk top\n"
            "  mk top --once\n"
            "  mk top --json --interval 5s | jq -c .rates",
            TopCommand},
    Command{"logs", "The daemon's log, whether it runs or not",
            "  mk logs\n"
            "  mk logs -f\n"
            "  mk logs --since 2h --level warn\n"
            "  mk logs -n all --json | jq -r .message",
            LogsCommand},
    Command{"metrics", "What the daemon has counted and measured, as Prometheus text",
            "  mk metrics\n"
            "  mk metrics | grep first_token_seconds\n"
            "  mk metrics --json | jq '.families[] | select(.name == \"requests\").samples'",
            MetricsCommand},
    Command{"models", "The models that can be named",
            "  mk models\n  mk models --json\n  mk models --names", ModelsCommand},
    Command{"load", "Load a model and keep it warm",
            "  mk load story-k3\n"
            "  mk load story-k3 --precision exact\n"
            "  mk load ./big.bin --keep\n"
            "  mk load ./big.bin --keep-alive 2h",
            LoadCommand},
    Command{"unload", "Give back a model's memory",
            "  mk unload story-k3\n"
            "  mk unload --all",
            UnloadCommand},
    Command{"tokenize", "Text to token ids",
            "  mk tokenize \"Once upon a time\"\n"
            "  mk tokenize --pieces -f prompt.txt",
            TokenizeCommand},
    Command{"detokenize", "Token ids to text",
            "  mk detokenize 1,2,3\n"
            "  mk tokenize --plain \"Hi\" | mk detokenize @-",
            DetokenizeCommand},
    Command{"lens", "Draw what a model would say after every layer, for every token of a text",
            "  mk lens \"Once upon a time\" -o lens.html\n"
            "  mk lens -f poem.txt -n 0 --lens-layers 0,3-7 -o poem.svg\n"
            "  mk lens \"The little fox\" --colour entropy -o - | rsvg-convert > fox.png",
            LensCommand},
    Command{"routes", "Draw how the tokens of a text spread over the experts of every layer",
            "  mk routes -f story.txt -n 100 -o routes.html\n"
            "  mk routes --daemon -o routes.svg",
            RoutesCommand},
    Command{"routestats", "Count how often experts are picked, and keep it as a sketch",
            "  mk routestats \"Once upon a time\" -n 100\n"
            "  mk routestats -f story.txt -o routecms.bin\n"
            "  mk config set count_experts true && mk restart\n"
            "  mk routestats --daemon -o week.bin\n"
            "  mk routestats \"One day\" --json | jq '.layers[0].gini'",
            RoutestatsCommand},
    Command{"cmsinfo", "Look at sketches of experts that were picked, and merge them",
            "  mk cmsinfo routecms.bin\n"
            "  mk cmsinfo monday.bin tuesday.bin --merge week.bin\n"
            "  mk cmsinfo routecms.bin --json | jq .coverage",
            CmsinfoCommand},
    Command{"verify", "Read every byte of a model file and check it",
            "  mk verify ./model.bin\n"
            "  mk verify story-k3 --json",
            VerifyCommand},
    Command{"build", "Make a model file of random weights",
            "  mk build --preset tiny --out tiny.bin\n"
            "  mk build --preset micro --dry-run",
            BuildCommand},
    Command{"shadow", "Make a small copy of a model's experts, to stand in for them",
            "  mk shadow\n"
            "  mk shadow ./model.bin --bits 0.5 --detach\n"
            "  mk shadow story-k3 --out story.shadows --json | jq .relative_error\n"
            "  mk shadow --info story.shadows",
            ShadowCommand},
    Command{"bench", "Measure the speed of a model against the roof of the machine",
            "  mk bench\n"
            "  mk bench --quick --precision q8\n"
            "  mk bench ./model.bin --threads 1 --json\n"
            "  mk bench stream ./model.bin    (experts on a slow disk: `mk bench stream --help`)",
            BenchCommand},
    Command{
        "eval", "Measure models: likelihood of texts, answers to questions",
        "  mk eval\n"
        "  mk eval story-k3 story-dsv4 --precision exact\n"
        "  mk eval --text novel.txt\n"
        "  mk eval ./model.bin --task questions.jsonl --json | jq '.models[].tasks[].accuracy'\n"
        "  id=$(mk eval ./model.bin --detach)",
        EvalCommand},
    Command{"compare", "Measure two models on the same texts and questions, and tell them apart",
            "  mk compare story-k3 story-dsv4\n"
            "  mk compare story-k3 story-k3 --precision exact --precision-b q8\n"
            "  mk compare full.bin pruned.bin --text novel.txt -o report.html",
            CompareCommand},
    Command{"jobs", "Long work that goes on by itself: list, watch, end and resume it",
            "  id=$(mk verify ./model.bin --detach)\n"
            "  mk jobs\n"
            "  mk jobs attach $id\n"
            "  mk jobs cancel $id\n"
            "  mk jobs resume $id\n"
            "  mk jobs show $id --json | jq .result\n"
            "  mk jobs rm --done",
            JobsCommand},
    Command{"session", "Sessions: texts and conversations that are kept by name, and their forks",
            "  mk run --session story \"Once upon a time\"\n"
            "  mk session ls\n"
            "  mk session fork story other\n"
            "  mk session undo other 2\n"
            "  mk session diff story other\n"
            "  mk session save story story.mkmem && mk session restore copy story.mkmem\n"
            "  mk session info story --json | jq '.turns[].tokens'\n"
            "  mk session rm other copy",
            SessionCommand},
    Command{"pack", "Look at, check and combine memory packs",
            "  mk pack list\n"
            "  mk pack info story.mkmem\n"
            "  mk pack decay story --half-life 3 --out story-old",
            PackCommand},
    Command{"pck", "The cache of prompts' beginnings: what it holds, and to forget it",
            "  mk pck info\n"
            "  mk pck info --model story-k3 --json | jq .models[].states\n"
            "  mk pck clean",
            PckCommand},
    Command{"cachereplay", "How caches of experts would have done on recorded demands",
            "  mk cachereplay demands.trace\n"
            "  mk cachereplay --entries 100,200 --top-k 6 --json a.trace b.trace | jq .traces\n"
            "  mk cachereplay --budgets 64MiB,1GiB --model ./model.bin --latency 2ms \\\n"
            "    --bandwidth 500MB/s demands.trace\n"
            "  mk cachereplay --tracesim week.routes today.trace",
            CacheReplayCommand},
    Command{"routebuild", "Add recorded runs to a store of sessions, for prefetching",
            "  mk run --demand-trace monday.trace \"Once upon a time\"\n"
            "  mk routebuild week.routes monday.trace tuesday.trace",
            RoutebuildCommand},
    Command{"plan", "What a model would need on this machine, or another, and how fast it would be",
            "  mk plan ./model.bin\n"
            "  mk plan k3 --ram 256GiB --disk-bandwidth 7GB/s --disk-latency 80us\n"
            "  mk plan dsv4 --precision q8 --trace demands.trace --json | jq .budgets\n"
            "  mk plan --measure ./model.bin",
            PlanCommand},
    Command{"stop", "End the daemon and wait until it is gone",
            "  mk stop\n"
            "  mk stop --grace 30s",
            StopCommand},
    Command{"restart", "End the daemon, if one runs, and start one", "  mk restart",
            RestartCommand},
    Command{"service", "Let systemd start the daemon: install, uninstall or look at its units",
            "  mk service install\n"
            "  mk service status\n"
            "  mk service status --json | jq -r .service.program\n"
            "  mk service uninstall",
            ServiceCommand},
    Command{"config", "The settings of the daemon: see them, change them, check their file",
            "  mk config\n"
            "  mk config set max_batch 4 --reload\n"
            "  mk config set aliases.story ~/models/story-k3.bin\n"
            "  mk config get keep_alive\n"
            "  mk config unset threads\n"
            "  mk config check && mk config reload\n"
            "  $EDITOR \"$(mk config path)\"",
            ConfigCommand},
    Command{"doctor", "Look for what is wrong, and say how to mend it; exit code 4: warnings",
            "  mk doctor\n"
            "  mk doctor --json | jq '.checks[] | select(.health != \"ok\")'",
            DoctorCommand},
    Command{"completions", "Print a shell's script that completes commands, options and models",
            "  mk completions bash > ~/.local/share/bash-completion/completions/mk\n"
            "  mk completions zsh > ~/.zfunc/_mk\n"
            "  mk completions fish > ~/.config/fish/completions/mk.fish",
            CompletionsCommand},
    Command{"version", "Versions of mk and of the daemon that runs",
            "  mk version\n  mk version --json", VersionCommand},
};

}  // namespace

std::span<const Command> AllCommands() {
  return kCommands;
}

}  // namespace mk::client
