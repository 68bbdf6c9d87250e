// Refreshes the page in place: fetches its parts and replaces those that changed.
'use strict';

const kEveryMs = 5000;
let fetching = false;

function replaceParts(html) {
  const next = new DOMParser().parseFromString(html, 'text/html');
  for (const part of [...next.body.children]) {
    const old = document.getElementById(part.id);
    if (!old) continue;
    // A chart that is being read stands still, and what was unfolded stays so.
    if (old.matches(':hover') && old.querySelector('.plot')) continue;
    if (old.open) part.open = true;
    if (old.outerHTML !== part.outerHTML) old.replaceWith(part);
  }
}

async function refresh() {
  if (fetching || document.hidden || !getSelection().isCollapsed) return;
  fetching = true;
  try {
    const answer = await fetch('/parts', {cache: 'no-store', signal: AbortSignal.timeout(10000)});
    if (!answer.ok) throw new Error(answer.statusText);
    replaceParts(await answer.text());
    document.body.classList.remove('stale');
  } catch {
    document.body.classList.add('stale');
  } finally {
    fetching = false;
  }
}

setInterval(refresh, kEveryMs);
document.addEventListener('visibilitychange', refresh);
