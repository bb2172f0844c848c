#!/usr/bin/env python3
"""headwise chat: its commands, what is kept of a conversation, and Ctrl-C."""
import fcntl
import json
import os
import pathlib
import signal
import struct
import subprocess
import termios

from cli_support import MODEL, CliTest, Terminal, command_of, main

CHAT = ("chat", "--model", MODEL, "-n", 8)
HINT = "press Ctrl-C again to quit"


class Commands(CliTest):
    def chat(self, *lines, options=(), **rest):
        """What it answered, as one text, and what it said beside that."""
        done = self.succeeds(*CHAT, *options, stdin="".join(line + "\n" for line in lines).encode(), **rest)
        return done.stdout.decode(), done.stderr.decode()

    def answer(self, *messages):
        """What the model says to these messages, users' and its own in turn, or (role, content)."""
        file = self.path / "prompts.jsonl"
        roles = ("user", "assistant")
        content = [{"role": each[0], "content": each[1]} if isinstance(each, tuple) else {"role": roles[i % 2], "content": each}
                   for i, each in enumerate(messages)]
        file.write_text(json.dumps({"messages": content}) + "\n")
        return json.loads(self.succeeds("run", "--model", MODEL, "--prompts", file, "-n", 8).stdout)["text"]

    def test_help_and_quit(self):
        for leave in ("/quit", "/exit", "/quit  "):
            answers, notes = self.chat("/help", leave, "Hello.")
            self.assertEqual(answers, "")
            for command in ("/help", "/reset", "/system", "/save", "/load", "/quit", "/exit", "//", "Ctrl-C"):
                self.assertIn(command, notes)

    def test_what_is_no_command_is_not_sent(self):
        for line, says in (("/foo", "/foo is no command: /help"), ("/", "/ is no command"), ("/reset now", 'found "now" behind it'),
                           ("/save", "/save: expected a file"), ("/Help", "/Help is no command")):
            answers, notes = self.chat(line)
            self.assertEqual(answers, "", line)
            self.assertIn(says, notes)
        self.assertEqual(self.chat("//foo bar")[0], self.answer("/foo bar") + "\n")

    def test_reset_begins_anew(self):
        first = self.answer("Hello.")
        self.assertEqual(self.chat("Hello.", "/reset", "Hello.")[0], f"{first}\n{first}\n")
        self.assertNotEqual(self.chat("Hello.", "Hello.")[0], f"{first}\n{first}\n")
        # The system prompt stays.
        told = self.answer(("system", "Count sheep."), ("user", "Hello."))
        self.assertNotEqual(told, first)
        answers, notes = self.chat("Hello.", "/reset", "Hello.", "/system", options=("--system", "Count sheep."))
        self.assertEqual(answers, f"{told}\n{told}\n")
        self.assertIn("Count sheep.\n", notes)

    def test_system(self):
        told = self.answer(("system", "Count sheep."), ("user", "Hello."))
        self.assertEqual(self.chat("Once.", "/system Count sheep.", "Hello.")[0].splitlines()[-1], told.splitlines()[-1])
        self.assertIn("[no system prompt]", self.chat("/system")[1])
        file = self.path / "system.txt"
        file.write_text("Count sheep.")
        self.assertEqual(self.chat("Hello.", options=("--system-file", file))[0], told + "\n")
        self.refuses(*CHAT, "--system-file", file, "--system", "x", status=2, says="--system")
        file.write_bytes(b"caf\xe9")
        self.refuses(*CHAT, "--system-file", file, says=["system.txt", "UTF-8", "3"])
        file.write_bytes(b"")
        self.refuses(*CHAT, "--system-file", file, says=["system.txt", "empty"])
        self.refuses(*CHAT, "--system", "", status=2, says="--system: found nothing")

    def test_saved_conversations_go_on(self):
        file = self.path / "talk with blanks.json"
        answers, notes = self.chat("Hello.", f"/save  {file} ", options=("--system", "Count sheep."))
        self.assertIn("3 messages", notes)
        saved = json.loads(file.read_text())
        self.assertEqual(saved, [{"role": "system", "content": "Count sheep."}, {"role": "user", "content": "Hello."},
                                 {"role": "assistant", "content": answers.removesuffix("\n")}])
        expected = self.answer(*((each["role"], each["content"]) for each in saved), ("user", "And again?"))
        loaded, notes = self.chat("Something else.", f"/load {file}", "/system", "And again?", f"/save {file}")
        self.assertEqual(loaded, self.answer("Something else.") + "\n" + expected + "\n")
        self.assertIn("Count sheep.", notes)
        self.assertEqual(json.loads(file.read_text()),
                         saved + [{"role": "user", "content": "And again?"}, {"role": "assistant", "content": expected}])

    def test_what_cannot_be_loaded_leaves_everything_as_it_was(self):
        user, assistant = {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}
        file, kept = self.path / "talk.json", self.path / "kept.json"
        for content, says in (("{", "not valid JSON"), ("{}", "expected a list of messages"), ([user], "message 0 is the last"),
                              ([assistant], 'message 0: role is "assistant"'), ([user, user], "message 1: role"),
                              ([user, {"role": "tool", "content": "x"}], "message 1 is the last and tool's"),
                              ([user, {"role": "tool", "content": "x"}, assistant], 'message 1 has role "tool"'),
                              ([user, {"role": "assistant"}], "message 1"), ([{**user, "content": "word " * 200}, assistant], "tokens"),
                              ([user, assistant, {"role": "system", "content": "x"}], "message 2: role")):
            file.write_text(content if isinstance(content, str) else json.dumps(content))
            answers, notes = self.chat("Hello.", f"/load {file}", f"/save {kept}", options=("--max-context", 100))
            self.assertIn("talk.json: ", notes)
            self.assertIn(says, notes)
            self.assertEqual(json.loads(kept.read_text())[1]["content"], answers.removesuffix("\n"))
        fifo = self.path / "fifo"
        os.mkfifo(fifo)
        answers, notes = self.chat(f"/load {fifo}", f"/save {fifo}", f"/load {self.path / 'nowhere'}", f"/save {self.path}", "Hello.")
        self.assertEqual(notes.count("fifo: is a FIFO, expected a file"), 2)
        self.assertIn("nowhere: ", notes)
        self.assertEqual(answers, self.answer("Hello.") + "\n")

    def test_a_message_without_room_is_not_sent(self):
        answers, notes = self.chat("word " * 200, "Hello.", options=("--max-context", 100))
        self.assertIn("The context is full", notes)
        self.assertEqual(answers, self.answer("Hello.") + "\n")


class CtrlC(CliTest):
    def test_at_the_prompt_it_clears_the_line_and_twice_quits(self):
        terminal = Terminal(*CHAT)
        terminal.until("> ")
        terminal.type("half a mess")
        terminal.until("half a mess")
        terminal.type("\x03")
        terminal.until(HINT)
        terminal.until("> ")
        terminal.type("/system\n")
        # Not "half a mess/system"; and once something else was typed, the next is the first again.
        terminal.until("[no system prompt]")
        terminal.until("> ")
        terminal.type("\x03")
        terminal.until(HINT)
        terminal.until("> ")
        terminal.type("\x03")
        rest, status = terminal.rest()
        self.assertEqual(status, 130, rest)
        self.assertIn("interrupted", rest)

    def test_an_answer_is_stopped_and_the_conversation_goes_on(self):
        ends = json.loads(self.succeeds("tokenize", "--model", MODEL, stdin=b"<|im_end|><|end_of_text|>").stdout)
        file = self.path / "talk.json"
        # It would never end by itself.
        terminal = Terminal("chat", "--model", MODEL, "-n", 30000, *(f"--logit-bias={each}=-inf" for each in ends))
        terminal.until("> ")
        terminal.type("Hello.\n")
        terminal.until("Hello.")
        terminal.until(" ")  # a word of the answer
        terminal.type("\x03")
        terminal.until("[stopped]")
        terminal.until("> ")
        # That one was the answer's: at the prompt the first is still to come.
        terminal.type("\x03")
        terminal.until(HINT)
        terminal.until("> ")
        terminal.type(f"/save {file}\n")
        terminal.until("2 messages")
        # Else the echo comes before the prompt, whose blank looks like a word of the answer.
        terminal.until("> ")
        terminal.type("And again?\n")
        terminal.until("And again?")
        terminal.until(" ")
        terminal.type("\x03")
        terminal.until("[stopped]")
        terminal.until("> ")
        terminal.type("\x04")
        rest, status = terminal.rest()
        self.assertEqual(status, 0, rest)
        user, answer = json.loads(pathlib.Path(file).read_text())
        self.assertEqual(user, {"role": "user", "content": "Hello."})
        self.assertEqual(answer["role"], "assistant")
        self.assertTrue(answer["content"])

    def test_a_message_that_was_not_read_to_its_end_is_none(self):
        file = self.path / "talk.json"
        slow = ("--model", MODEL, "--backend", "ref", "--threads", 1, "--chunk-tokens", 1, "--kv-dtype", "f32", "-n", 4)
        expected = self.succeeds("chat", *slow, stdin=b"Hello.\n").stdout
        with subprocess.Popen(command_of("chat", *slow), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
            self.assertIn(b"This conversation can grow", chat.stderr.readline())
            chat.stdin.write(b"word " * 4000 + b"\n")
            chat.stdin.flush()
            while struct.unpack("i", fcntl.ioctl(chat.stdin, termios.FIONREAD, bytes(4)))[0] > 0:
                pass  # it has not taken all of it
            chat.send_signal(signal.SIGINT)
            self.assertEqual(chat.stderr.readline(), b"[stopped]\n")
            answers, notes = chat.communicate(f"/save {file}\nHello.\n".encode(), timeout=600)
        self.assertEqual(chat.returncode, 0, notes)
        self.assertEqual(json.loads(file.read_text()), [])
        self.assertEqual(answers, b"\n" + expected)

    def test_without_a_terminal_one_is_enough(self):
        with subprocess.Popen(command_of("chat", "--model", MODEL), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as chat:
            chat.stdin.write(b"/help\n")
            chat.stdin.flush()
            while b"Ctrl-C ends an answer" not in chat.stderr.readline():
                pass  # it waits for the next line from here on
            chat.send_signal(signal.SIGINT)
            self.assertIn(b"interrupted", chat.stderr.read())
        self.assertEqual(chat.returncode, 130)


if __name__ == "__main__":
    main()
