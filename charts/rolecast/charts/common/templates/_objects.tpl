{{- define "common.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "common.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
  {{- include "common.accountAnnotations" . | nindent 2 }}
automountServiceAccountToken: false
{{- end }}

{{/* A cloud finds by them which role an account has. */}}
{{- define "common.accountAnnotations" -}}
{{- with merge (deepCopy .Values.serviceAccount.annotations) .Values.global.serviceAccount.annotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "common.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "common.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  selector:
    {{- include "common.selector" . | nindent 4 }}
  ports:
    - name: http
      port: 8080
      targetPort: http
      appProtocol: http
{{- end }}

{{/* With one replica a budget would only keep a node from being drained. */}}
{{- define "common.podDisruptionBudget" -}}
{{- $scaling := .Values.autoscaling | default dict -}}
{{- if gt (int (ternary $scaling.minReplicas .Values.replicas (default false $scaling.enabled))) 1 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "common.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{- define "common.horizontalPodAutoscaler" -}}
{{- with .Values.autoscaling -}}
{{- if .enabled -}}
{{- if lt (int .maxReplicas) (int .minReplicas) -}}
{{- fail (printf "%s.autoscaling: maxReplicas %v is below minReplicas %v; raise it" $.Chart.Name .maxReplicas .minReplicas) -}}
{{- end -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "common.name" $ }}
  labels:
    {{- include "common.labels" $ | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "common.name" $ }}
  minReplicas: {{ .minReplicas }}
  maxReplicas: {{ .maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ .cpu }}
{{- end }}
{{- end }}
{{- end }}

{{/* Workers for the groups that wait or are being played, by KEDA; the Deployment then says no replicas. */}}
{{- define "common.scaledObject" -}}
{{- with .Values.scaling -}}
{{- if .enabled -}}
{{- if lt (int .maxReplicas) (int .minReplicas) -}}
{{- fail (printf "%s.scaling: maxReplicas %v is below minReplicas %v; raise it" $.Chart.Name .maxReplicas .minReplicas) -}}
{{- end -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ include "common.name" $ }}
  labels:
    {{- include "common.labels" $ | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "common.name" $ }}
  minReplicaCount: {{ .minReplicas }}
  maxReplicaCount: {{ .maxReplicas }}
  cooldownPeriod: {{ .cooldownSeconds }}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ .prometheus }}
        # No coordinator, no groups: then nothing is to be played.
        query: sum(rolecast_coordinator_groups_waiting{namespace="{{ $.Release.Namespace }}"}) + sum(rolecast_coordinator_leases_held{namespace="{{ $.Release.Namespace }}"}) or vector(0)
        threshold: {{ .groupsPerWorker | quote }}
        activationThreshold: "0"
{{- end }}
{{- end }}
{{- end }}

{{- define "common.serviceMonitor" -}}
{{- if .Values.global.monitoring.serviceMonitor -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "common.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
    {{- with .Values.global.monitoring.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "common.selector" . | nindent 6 }}
  endpoints:
    - port: http
      path: /metrics
      interval: {{ .Values.global.monitoring.interval }}
{{- end }}
{{- end }}

{{/* A pod for `helm test` that runs `script` (Python, standard library only) in the part's own image, which finds a token in ROLECAST_TOKEN. */}}
{{- define "common.test" -}}
{{- $root := .root -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "common.name" $root }}-test
  labels:
    {{- include "common.labels" $root | replace (printf "component: %s" $root.Chart.Name) "component: test" | nindent 4 }}
  annotations:
    helm.sh/hook: test
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  serviceAccountName: {{ include "common.name" $root }}
  restartPolicy: Never
  {{- include "common.podSpec" $root | nindent 2 }}
  containers:
    - name: test
      image: {{ include "common.image" $root }}
      imagePullPolicy: {{ $root.Values.global.image.pullPolicy }}
      command: [python, -c]
      args:
        - |
          {{- .script | trim | nindent 10 }}
        - http://{{ include "common.name" $root }}:8080
      {{- with $root.Values.global.auth.existingSecret }}
      env:
        - name: ROLECAST_TOKEN
          valueFrom:
            secretKeyRef:
              name: {{ . }}
              key: token
      {{- end }}
      resources:
        requests: {cpu: 50m, memory: 64Mi, ephemeral-storage: 16Mi}
        limits: {cpu: 500m, memory: 256Mi, ephemeral-storage: 256Mi}
      securityContext:
        {{- include "common.containerSecurity" $root | nindent 8 }}
{{- end }}
