// A chat: questions, answers, and what is asked next.

import { useLayoutEffect, useRef } from "../../vendor/hooks.js";
import { nextQuestions } from "../examples.js";
import { html } from "../html.js";
import { isBusy } from "../state.js";
import { figuresLine } from "../words.js";
import { Legend, outcome, seenSources } from "./answer.js";
import { AnswerText } from "./answer_text.js";
import { CopyButton } from "./copy_button.js";
import { ErrorNote, FailureNote, isOfAnswer } from "./failure.js";
import { Options } from "./options.js";

/** Pixels from the end of the page within which it is followed. */
const NEAR = 80;

export function ChatView({ state, actions }) {
  const { turns } = state;
  const { scrollHeight, scrollTop, clientHeight } = document.documentElement;
  const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR;
  const follow = (isWanted) => isWanted && turns.length > 0 && scrollTo(0, document.documentElement.scrollHeight);
  useLayoutEffect(() => follow(true), [turns.length]);
  useLayoutEffect(() => follow(isAtEnd));
  const sources = turns.flatMap(({ run }) => seenSources(run.follower));
  return html`
    <ol class="turns" aria-label="Chat">
      ${turns.map((turn, index) => html`<${Turn} ...${{ turn, index, turns, actions }} />`)}
    </ol>
    <${FailureNote} state=${state} actions=${actions} />
    ${turns.length > 0
      ? html`<${Legend} sources=${sources} />`
      : html`<p>
          Each answer is drafted from all that was said before: nothing need be attached as a prediction.
        </p>`}
    <${Suggestions} state=${state} actions=${actions} />
    <${Composer} state=${state} actions=${actions} />
  `;
}

function Turn({ turn: { question, run }, index, turns, actions }) {
  const isLast = index === turns.length - 1;
  return html`
    <li class="turn">
      <p class="question"><span class="visually-hidden">You: </span>${question}</p>
      <${AnswerText} follower=${run.follower} isRunning=${run.isRunning} label=${`Answer ${index + 1}`} />
      ${isOfAnswer(run.error) && html`<${ErrorNote} error=${run.error} />`}
      <div class="panel-head">
        <p class="outcome" data-status=${run.status}>
          ${outcome(run)}${run.follower.numTokens > 0 && `: ${figuresLine(run)}`}
        </p>
        ${!run.isRunning && html`<${CopyButton} text=${run.content} what=${`answer ${index + 1}`} />`}
        ${isLast && ["failed", "stopped"].includes(run.status) && html`
          <button type="button" class="quiet" onClick=${() => actions.ask(question, turns.slice(0, -1))}>
            Ask again
          </button>`}
      </div>
    </li>
  `;
}

function Suggestions({ state, actions }) {
  if (isBusy(state)) return null;
  const questions = nextQuestions(state.server.model, state.turns.map(({ question }) => question));
  return questions.length > 0 && html`
    <div class="suggestions" role="group" aria-label="Examples">
      ${questions.map((question) => html`
        <button type="button" onClick=${() => actions.ask(question)}>${question}</button>`)}
    </div>
  `;
}

function Composer({ state, actions }) {
  const text = useRef(null);
  const ask = (event) => {
    event.preventDefault();
    // What was typed since the page was drawn last is asked too.
    const { value } = text.current;
    if (value.trim() === "") text.current.focus();
    else actions.ask(value);
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!event.repeat) ask(event);
  };
  return html`
    <form class="composer" onSubmit=${ask}>
      <label class="visually-hidden" for="question">Message</label>
      <textarea
        id="question"
        class="sheet"
        rows="2"
        placeholder="Ask something"
        aria-describedby="question-keys"
        ref=${text}
        value=${state.question}
        onInput=${(event) => actions.store.set({ question: event.target.value })}
        onKeyDown=${onKeyDown}
      ></textarea>
      <div class="buttons">
        <button type="submit" class="primary">Send</button>
        <button type="button" disabled=${!isBusy(state)} onClick=${() => actions.stop()} title="Esc">Stop</button>
        <button type="button" disabled=${state.turns.length === 0} onClick=${() => actions.forgetChat()}>
          New chat
        </button>
        <p id="question-keys" class="hint">Enter sends, Shift Enter begins a line.</p>
      </div>
      <${Options} form=${state.form} actions=${actions} />
    </form>
  `;
}
