// The commands of mk.

#pragma once

#include <span>

#include "client/command_line.h"

namespace mk::client {

// In the order of `mk --help`.
std::span<const Command> AllCommands();

int RunCommand(const Command& command, int argc, char** argv);
int PrefillCommand(const Command& command, int argc, char** argv);
int AbsorbCommand(const Command& command, int argc, char** argv);
int LensCommand(const Command& command, int argc, char** argv);
int RoutesCommand(const Command& command, int argc, char** argv);
int RoutestatsCommand(const Command& command, int argc, char** argv);
int CmsinfoCommand(const Command& command, int argc, char** argv);
int ChatCommand(const Command& command, int argc, char** argv);
int EvalCommand(const Command& command, int argc, char** argv);
int CompareCommand(const Command& command, int argc, char** argv);
int ScoreCommand(const Command& command, int argc, char** argv);
int MapCommand(const Command& command, int argc, char** argv);
int PingCommand(const Command& command, int argc, char** argv);
int StatusCommand(const Command& command, int argc, char** argv);
int PsCommand(const Command& command, int argc, char** argv);
int TopCommand(const Command& command, int argc, char** argv);
int LogsCommand(const Command& command, int argc, char** argv);
int MetricsCommand(const Command& command, int argc, char** argv);
int ModelsCommand(const Command& command, int argc, char** argv);
int LoadCommand(const Command& command, int argc, char** argv);
int UnloadCommand(const Command& command, int argc, char** argv);
int StopCommand(const Command& command, int argc, char** argv);
int RestartCommand(const Command& command, int argc, char** argv);
int TokenizeCommand(const Command& command, int argc, char** argv);
int DetokenizeCommand(const Command& command, int argc, char** argv);
int ShadowCommand(const Command& command, int argc, char** argv);
int VerifyCommand(const Command& command, int argc, char** argv);
int BuildCommand(const Command& command, int argc, char** argv);
int BenchCommand(const Command& command, int argc, char** argv);
int StreamBenchCommand(int argc, char** argv);  // `mk bench stream`, from "stream" on
int CacheReplayCommand(const Command& command, int argc, char** argv);
int RoutebuildCommand(const Command& command, int argc, char** argv);
int PlanCommand(const Command& command, int argc, char** argv);
int PckCommand(const Command& command, int argc, char** argv);
int ServiceCommand(const Command& command, int argc, char** argv);
int SessionCommand(const Command& command, int argc, char** argv);
int JobsCommand(const Command& command, int argc, char** argv);
int ConfigCommand(const Command& command, int argc, char** argv);
int DoctorCommand(const Command& command, int argc, char** argv);
int CompletionsCommand(const Command& command, int argc, char** argv);
int VersionCommand(const Command& command, int argc, char** argv);

}  // namespace mk::client
